// Cuts by query tokens first, which costs nothing; if that gives too few pieces for the threads, long
// contexts are cut by partition and short ones by head.
#include "attention_plan.h"

#include <algorithm>

namespace redoubt {
namespace {

// Enough pieces per thread for the dearest-first order to balance them.
constexpr int kItemsPerThread = 4;
// Query tokens of one piece: enough to reuse a page of keys, few enough to make many pieces.
constexpr int kMostQueryTokens = 32;
constexpr int kFewestQueryTokens = 8;
// Partial states are kept out of main memory's way: 64 MiB at most.
constexpr size_t kMaxStatesFloats = 16 << 20;

class Planner {
 public:
  Planner(const Batch& batch, const ModelConfig& config) : batch_(batch), config_(config) {}

  AttentionPlan plan(int32_t threads) {
    const int64_t wanted = threads == 1 ? 1 : int64_t(threads) * kItemsPerThread;
    int chunk_tokens = kMostQueryTokens;
    while (chunk_tokens > kFewestQueryTokens && count_chunks(chunk_tokens) * config_.kv_heads < wanted) {
      chunk_tokens /= 2;
    }
    const bool cut_further = count_chunks(chunk_tokens) * config_.kv_heads < wanted;
    for (int32_t sequence = 0; sequence < batch_.sequences; ++sequence)
      add_sequence(sequence, chunk_tokens, cut_further);
    std::stable_sort(plan_.items.begin(), plan_.items.end(),
                     [](const AttentionItem& a, const AttentionItem& b) { return a.cost > b.cost; });
    return std::move(plan_);
  }

 private:
  int64_t count_chunks(int chunk_tokens) const {
    int64_t chunks = 0;
    for (int32_t sequence = 0; sequence < batch_.sequences; ++sequence) {
      chunks += (batch_.query_lengths[sequence] + chunk_tokens - 1) / chunk_tokens;
    }
    return chunks;
  }

  void add_sequence(int32_t sequence, int chunk_tokens, bool cut_further) {
    AttentionItem item;
    item.sequence = sequence;
    item.heads = config_.group_heads();
    for (int32_t begin = 0; begin < batch_.query_lengths[sequence]; begin += chunk_tokens) {
      item.query_begin = begin;
      item.query_tokens = std::min(chunk_tokens, batch_.query_lengths[sequence] - begin);
      for (item.kv_head = 0; item.kv_head < config_.kv_heads; ++item.kv_head) {
        if (!cut_further || !(add_partitions(item) || add_heads(item))) add(item, visible_keys(item));
      }
    }
  }

  int32_t visible_keys(const AttentionItem& item) const {
    return batch_.context_lengths[item.sequence] + item.query_begin + item.query_tokens;
  }

  void add(AttentionItem item, int64_t keys) {
    item.cost = keys * item.query_tokens * item.heads;
    plan_.items.push_back(item);
  }

  bool add_partitions(AttentionItem item) {
    const int32_t count = partition_count(batch_, item);
    const size_t floats =
        size_t(count) * size_t(item.query_tokens * item.heads) * size_t(config_.head_dim + 2);
    if (count < 2 || plan_.states_floats + floats > kMaxStatesFloats) return false;
    item.states_begin = plan_.states_floats;
    plan_.states_floats += floats;
    plan_.merges.push_back(item);
    for (item.partition = 0; item.partition < count; ++item.partition) {
      add(item, std::min(kPartitionTokens, visible_keys(item) - item.partition * kPartitionTokens));
    }
    return true;
  }

  bool add_heads(AttentionItem item) {
    if (item.heads == 1) return false;
    item.heads = 1;
    for (; item.head_begin < config_.group_heads(); ++item.head_begin) add(item, visible_keys(item));
    return true;
  }

  const Batch& batch_;
  const ModelConfig& config_;
  AttentionPlan plan_;
};

}  // namespace

AttentionPlan plan_attention(const Batch& batch, const ModelConfig& config, int32_t threads) {
  return Planner(batch, config).plan(threads);
}

int32_t partition_count(const Batch& batch, const AttentionItem& item) {
  const int32_t keys = batch.context_lengths[item.sequence] + item.query_begin + item.query_tokens;
  return (keys + kPartitionTokens - 1) / kPartitionTokens;
}

}  // namespace redoubt
