// The stages between q, k, v and the output projection: rotation, KV pages, attention by the plan.
#include <algorithm>
#include <cstring>

#include "step/forward.h"

namespace redoubt {

void ForwardPass::rope_and_store(int thread, int layer, const LayerRows& rows, Range heads) {
  const ModelConfig& config = context_.config;
  const LayerWeights& weights = weights_of(thread).layers[size_t(layer)];
  const int64_t count = heads.end - heads.begin;
  const BasicRange<int64_t> range = share(rows.batch.tokens * count, thread, threads_);
  for (int64_t unit = range.begin; unit < range.end; ++unit) {
    const int row = int(unit / count), head = heads.begin + int(unit % count);
    float* vector = workspace_.qkv.data() + row * workspace_.qkv_stride + int64_t(head) * config.head_dim;
    const float* angles = workspace_.angles.data() + int64_t(row) * config.rope.rotary_dim;
    if (head < config.heads) {
      rotate(vector, weights.query_norm, angles);
      continue;
    }
    rotate(vector, weights.key_norm, angles);
    const int32_t sequence = sequence_of_token_[size_t(row)];
    const KvView kv = context_.kv_cache.view(
        layer, head - config.heads, context_.page_tables + int64_t(sequence) * context_.pages_per_sequence);
    const int32_t place = batch_.context_lengths[sequence] + row - all_rows_.first_row[size_t(sequence)];
    kernels_.write_kv(kv, place, vector, vector + config.kv_dim());
  }
  finish_stage(thread, Stage::kRope);
}

void ForwardPass::rotate(float* head, const float* norm, const float* angles) {
  const ModelConfig& config = context_.config;
  if (norm != nullptr) {
    float normalized[kMaxHeadDim];
    kernels_.rms_norm(head, norm, config.rms_norm_epsilon, config.head_dim, normalized);
    std::memcpy(head, normalized, size_t(config.head_dim) * sizeof(float));
  }
  kernels_.rope(head, angles, config.rope.rotary_dim);
}

AttentionTask ForwardPass::attention_task(const AttentionItem& item, int layer, const LayerRows& rows) const {
  const ModelConfig& config = context_.config;
  const int64_t row = rows.first_row[size_t(item.sequence)] + item.query_begin;
  const int64_t head = int64_t(item.kv_head) * config.group_heads() + item.head_begin;
  AttentionTask task;
  task.queries = workspace_.qkv.data() + row * workspace_.qkv_stride + head * config.head_dim;
  task.output = workspace_.attention.data() + row * workspace_.attention_stride + head * config.head_dim;
  task.query_token_stride = workspace_.qkv_stride;
  task.output_token_stride = workspace_.attention_stride;
  task.query_tokens = item.query_tokens;
  task.group_heads = item.heads;
  task.context_before = rows.batch.context_lengths[item.sequence] + item.query_begin;
  task.scale = attention_scale_;
  task.kv = context_.kv_cache.view(
      layer, item.kv_head, context_.page_tables + int64_t(item.sequence) * context_.pages_per_sequence);
  return task;
}

bool ForwardPass::attends_in_bf16(const AttentionItem& item) const {
  return context_.bf16.prompts && item.sequence >= batch_.answers() &&
         can_attend_in_bf16(context_.kv_cache.type(), context_.config.head_dim);
}

KvPages ForwardPass::pages_of(const AttentionItem& item, int layer, const LayerRows& rows) const {
  const AttentionTask task = attention_task(item, layer, rows);
  const int32_t keys = visible_keys(task, task.query_tokens - 1);
  const int32_t pages = (keys + kPageTokens - 1) / kPageTokens;
  const int32_t first = std::max(item.partition, 0) * (kPartitionTokens / kPageTokens);
  return {task.kv, first, pages - first};
}

void ForwardPass::attend_item(int thread, const AttentionItem& item, const KvPages& upcoming, int layer,
                              const LayerRows& rows) {
  std::byte* scratch = workspace_.threads[size_t(thread)].attention_scratch.data();
  AttentionTask task = attention_task(item, layer, rows);
  task.upcoming = upcoming;
  const bool bf16 = attends_in_bf16(item);
  if (item.partition < 0) return (bf16 ? kernels_.attention_bf16 : kernels_.attention)(task, scratch);
  const size_t queries = size_t(item.query_tokens) * size_t(item.heads);
  const size_t state = size_t(item.partition) * queries * size_t(state_floats(context_.config.head_dim));
  const auto attend_partition = bf16 ? kernels_.attention_bf16_partition : kernels_.attention_partition;
  attend_partition(task, item.partition, workspace_.states.data() + item.states_begin + state, scratch);
}

// A thread's items lie dearest first, so that others can help with the last ones, and it knows what it will
// read next.
void ForwardPass::attend(int thread, int layer, const LayerRows& rows) {
  const AttentionPlan& plan = rows.attention;
  take_pieces(thread, {0, threads_}, claim_of(layer, Claim::kAttention), [&](int owner, int piece) {
    const size_t at = plan.first_item[size_t(owner)] + size_t(piece),
                 end = plan.first_item[size_t(owner) + 1];
    if (at >= end) return false;
    const KvPages upcoming = at + 1 < end ? pages_of(plan.items[at + 1], layer, rows) : KvPages{};
    attend_item(thread, plan.items[at], upcoming, layer, rows);
    return true;
  });
  float* states = workspace_.states.data();
  if (!plan.merges.empty()) {
    barrier(thread);
    const Range range = share(int(plan.merges.size()), thread, threads_);
    for (int i = range.begin; i < range.end; ++i) {
      const AttentionItem& item = plan.merges[size_t(i)];
      kernels_.attention_merge(attention_task(item, layer, rows), states + item.states_begin,
                               partition_count(rows.batch, item));
    }
  }
  finish_stage(thread, Stage::kAttention);
}

}  // namespace redoubt
