// Divides a step's attention into work items for threads. Plain arithmetic on lengths; the division never
// changes a result (contract/kernel_table.h). Layers whose windows or heads differ need different plans.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "model/config.h"
#include "step/batch.h"

namespace redoubt {

// Some query tokens and heads of one kv head's group, over all keys that they see or over one partition.
struct AttentionItem {
  int32_t sequence = 0;
  int32_t kv_head = 0;
  int32_t query_begin = 0;  // in the sequence's new tokens
  int32_t query_tokens = 0;
  int32_t head_begin = 0;  // in the group
  int32_t heads = 0;
  int32_t partition = -1;   // -1: all that are seen
  size_t states_begin = 0;  // of its merge, in floats
  int64_t cost = 0;
};

struct AttentionPlan {
  int32_t layer = 0;   // one of those that it is for
  int32_t window = 0;  // keys that a query sees; 0: all
  int32_t ahead = 0;   // of them after its own, which must be there
  HeadShape shape;
  std::vector<AttentionItem> items;   // thread by thread, by falling cost
  std::vector<size_t> first_item;     // of each thread, and the end
  std::vector<AttentionItem> merges;  // of the items that are partitions; done after all items
  size_t states_floats = 0;
};

// Plans a layer, and all others with its window and heads.
AttentionPlan plan_attention(const Batch& batch, const ModelConfig& config, int32_t layer, int32_t threads);

}  // namespace redoubt
