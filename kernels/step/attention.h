// The stages between query, key and value and the output projection: rotation, KV pages, attention by the
// plan.
#pragma once

#include <cstdint>

#include "step/team.h"

namespace redoubt {

class Attention {
 public:
  Attention(const StepContext& context, Team& team) : context_(context), team_(team) {}

  // Reserves memory for the rows' attention beside its inputs and outputs. Call it before any thread starts.
  static void reserve(const StepContext& context, const LayerRows& rows);

  // Rotates `heads` of each row (its query heads, then its key/value heads), and stores keys and values.
  void rope_and_store(int layer, const LayerRows& rows, Range heads);
  void attend(int layer, const LayerRows& rows);

 private:
  void rope_and_store_one(int layer, int64_t row, int head);
  void normalize_rows(int layer, const LayerRows& rows, Range heads);
  void normalize_head(float* head, const float* norm, int32_t head_dim) const;
  void rotate(float* head, const float* norm, const AttentionConfig& attention, const float* angles) const;
  // Multiplies a query by its position's temperature.
  void heat(float* head, const AttentionConfig& attention, float position) const;
  void attend_item(const AttentionItem& item, const KvPages& upcoming, int layer, const LayerRows& rows);
  void gate_output(int layer, const LayerRows& rows);
  KvPages pages_of(const AttentionItem& item, int layer, const LayerRows& rows) const;

  const StepContext& context_;
  Team& team_;
};

}  // namespace redoubt
