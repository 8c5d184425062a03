// Modifiers of a row's scores, times log2(e), between the product and the maximum: the soft cap, then ALiBi.
// Only their numbers; the tiers apply them. Compiled for the baseline.
#pragma once

#include "contract/attention.h"
#include "simd/numbers.h"

namespace redoubt {

// score = cap * tanh(score * inverse_cap), unless cap is 0; then score += slope * (key's position - query's).
struct ScoreModifier {
  float cap = 0.0f;
  float inverse_cap = 0.0f;
  float slope = 0.0f;
  bool modifies() const { return cap != 0.0f || slope != 0.0f; }
};

inline bool modifies_scores(const AttentionTask& task) {
  return task.softcap != 0.0f || task.slopes != nullptr;
}
// The modifier of a head of the task's group.
inline ScoreModifier score_modifier(const AttentionTask& task, int64_t head) {
  ScoreModifier modifier;
  if (task.softcap != 0.0f) {
    modifier.cap = task.softcap * kLog2eHigh;
    modifier.inverse_cap = 1.0f / modifier.cap;
  }
  if (task.slopes != nullptr) modifier.slope = task.slopes[head] * kLog2eHigh;
  return modifier;
}

}  // namespace redoubt
