// The scalar tier of attention: it defines every result (contract: contract/kernel_table.h). It is compiled
// for the baseline and without vectorization.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "attention/score_modifier.h"
#include "contract/attention.h"
#include "simd/scalar.h"

namespace redoubt::scalar {

// The keys of one partition that one (query token, head) sees.
struct PartitionRow {
  const KvView& kv;
  const float* query;
  float scale_log2e;
  int position;  // the query's
  int first;     // the partition's first key
  KeyRange seen;
  ScoreModifier modifier;

  // A score before the maximum is taken. t: the key's index in the partition. An infinite score becomes NaN.
  float modified(float score, int t) const {
    if (modifier.cap != 0.0f) {
      score = modifier.cap * tanh(score * modifier.inverse_cap) + (score - score);
    }
    if (modifier.slope == 0.0f) return score;
    return std::fma(modifier.slope, float(first + t - position), score);
  }
};

void attention(const AttentionTask& task, void* scratch);
// Computes the state (contract/attention.h) of a row over integer pages.
void attention_row_fixed(const PartitionRow& row, float* state);
// Does the same with bf16 products, over bf16 and int8 pages.
void attention_row_bf16(const PartitionRow& row, float* state);
void attention_bf16(const AttentionTask& task, void* scratch);
void attention_bf16_partition(const AttentionTask& task, int p, float* states, void* scratch);
void attention_partition(const AttentionTask& task, int p, float* states, void* scratch);
void attention_merge(const AttentionTask& task, const float* states, int count);
size_t attention_scratch_bytes(const AttentionTask& task);

}  // namespace redoubt::scalar
