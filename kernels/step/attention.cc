// Rotation, KV pages and attention (contract: step/attention.h).
#include "step/attention.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "contract/attention.h"

namespace redoubt {
namespace {

// The weight of a norm that has none.
constexpr auto kOnes = [] {
  std::array<float, kMaxHeadDim> ones{};
  ones.fill(1.0f);
  return ones;
}();

KvView pages_of_sequence(const StepContext& context, int layer, int kv_head, int32_t sequence) {
  const int64_t group = context.kv_cache.groups().of_layer[size_t(layer)].group;
  const int64_t row = group * context.max_sequences + sequence;
  return context.kv_cache.view(layer, kv_head, context.page_tables + row * context.pages_per_sequence);
}

AttentionTask attention_task(const StepContext& context, const AttentionItem& item, int layer,
                             const LayerRows& rows) {
  const ModelConfig& config = context.config;
  const AttentionConfig& attention = config.layer(layer).attention;
  const Workspace& workspace = context.workspace;
  const float* const sinks = context.weights.front().layers[size_t(layer)].sinks;
  const int64_t row = rows.first_row[size_t(item.sequence)] + item.query_begin;
  const HeadShape& shape = attention.shape;
  const int64_t head = int64_t(item.kv_head) * shape.group_heads() + item.head_begin;
  AttentionTask task;
  task.queries = workspace.qkv.data() + row * workspace.qkv_stride + head * shape.head_dim;
  task.output = workspace.attention.data() + row * workspace.attention_stride + head * shape.head_dim;
  task.query_token_stride = workspace.qkv_stride;
  task.output_token_stride = workspace.attention_stride;
  task.query_tokens = item.query_tokens;
  task.group_heads = item.heads;
  task.context_before = rows.batch.context_lengths[item.sequence] + item.query_begin;
  // The predictor attends in steps of one token each, and its first place is empty.
  task.window = config.is_predictor(layer) ? task.context_before : attention.window;
  if (!attention.causal) {
    task.ahead = attention.ahead();
    task.keys = context.batch.keys(item.sequence);
  }
  task.scale = attention.scale;
  task.softcap = attention.softcap;
  if (!attention.slopes.empty()) task.slopes = attention.slopes.data() + head;
  if (sinks != nullptr) task.sinks = sinks + head;
  task.kv = pages_of_sequence(context, layer, item.kv_head, item.sequence);
  return task;
}

bool attends_in_bf16(const StepContext& context, const AttentionItem& item, int layer) {
  return context.bf16.prompts && item.sequence >= context.batch.answers() &&
         can_attend_in_bf16(context.kv_cache.type(), context.config.shape(layer).head_dim);
}

}  // namespace

void Attention::reserve(const StepContext& context, const LayerRows& rows) {
  const KernelTable& kernels = context.kernels;
  for (const AttentionPlan& plan : rows.attention) {
    size_t scratch_bytes = 0;
    for (const AttentionItem& item : plan.items) {
      const auto bytes_of = attends_in_bf16(context, item, plan.layer) ? kernels.attention_bf16_scratch_bytes
                                                                       : kernels.attention_scratch_bytes;
      scratch_bytes = std::max(scratch_bytes, bytes_of(attention_task(context, item, plan.layer, rows)));
    }
    context.workspace.reserve_attention(scratch_bytes, plan.states_floats);
  }
}

void Attention::rope_and_store(int layer, const LayerRows& rows, Range heads) {
  normalize_rows(layer, rows, heads);
  const int64_t count = heads.end - heads.begin;
  team_.once([&] {
    const int64_t all = rows.batch.tokens * count;
    const BasicRange<int64_t> mine = share(all, team_.thread(), team_.threads());
    for (int64_t i = mine.begin; i < mine.end; ++i) {
      rope_and_store_one(layer, i / count, heads.begin + int(i % count));
    }
  });
  team_.finish_stage(Stage::kRope);
}

void Attention::rope_and_store_one(int layer, int64_t row, int head) {
  const ModelConfig& config = context_.config;
  const Workspace& workspace = context_.workspace;
  const LayerWeights& weights = team_.weights().layers[size_t(layer)];
  const AttentionConfig& attention = config.layer(layer).attention;
  const HeadShape& shape = attention.shape;
  float* const vector = workspace.qkv.data() + row * workspace.qkv_stride + int64_t(head) * shape.head_dim;
  const float* const angles = context_.angles() + row * workspace.angles_stride;
  const bool by_head = attention.qk_norm == QkNorm::kHead;
  if (head < shape.heads) {
    rotate(vector, by_head ? weights.query_norm : nullptr, attention, angles);
    return heat(vector, attention, angles[workspace.angles_stride - 1]);
  }
  float* const value = vector + shape.kv_dim();
  if (attention.value_is_key) std::memcpy(value, vector, size_t(shape.head_dim) * sizeof(float));
  if (attention.value_norm) normalize_head(value, kOnes.data(), shape.head_dim);
  rotate(vector, by_head ? weights.key_norm : nullptr, attention, angles);
  const int32_t sequence = context_.plan.sequence_of(int32_t(row));
  const int32_t position = context_.batch.context_lengths[sequence] + int32_t(row) -
                           context_.plan.all().first_row[size_t(sequence)];
  context_.kernels.write_kv(pages_of_sequence(context_, layer, head - shape.heads, sequence), position,
                            vector, value);
}

void Attention::normalize_head(float* head, const float* norm, int32_t head_dim) const {
  float normalized[kMaxHeadDim];
  context_.kernels.rms_norm(head, norm, context_.config.norm_epsilon, head_dim, normalized);
  std::memcpy(head, normalized, size_t(head_dim) * sizeof(float));
}

// angles: of all ropes, one after the other.
void Attention::rotate(float* head, const float* norm, const AttentionConfig& attention,
                       const float* angles) const {
  const ModelConfig& config = context_.config;
  if (norm != nullptr) normalize_head(head, norm, attention.shape.head_dim);
  if (attention.rope < 0) return;
  for (int i = 0; i < attention.rope; ++i) angles += config.ropes[size_t(i)].rotary_dim;
  context_.kernels.rope(head, angles, config.ropes[size_t(attention.rope)].rotary_dim);
}

void Attention::heat(float* head, const AttentionConfig& attention, float position) const {
  if (attention.temperature_scale == 0.0f) return;
  const double periods = std::floor(double(position) / attention.temperature_positions);
  const float factor = float(1.0 + attention.temperature_scale * std::log1p(periods));
  for (int32_t i = 0; i < attention.shape.head_dim; ++i) head[i] *= factor;
}

void Attention::normalize_rows(int layer, const LayerRows& rows, Range heads) {
  const ModelConfig& config = context_.config;
  if (config.layer(layer).attention.qk_norm != QkNorm::kRow) return;
  const HeadShape& shape = config.shape(layer);
  const LayerWeights& weights = team_.weights().layers[size_t(layer)];
  const Workspace& workspace = context_.workspace;
  team_.share(rows.batch.tokens, [&](Range mine) {
    const auto normalize_part = [&](float* x, const float* norm, int32_t n) {
      float* const normalized = team_.own().rows.data();
      context_.kernels.rms_norm(x, norm, config.norm_epsilon, n, normalized);
      std::memcpy(x, normalized, size_t(n) * sizeof(float));
    };
    for (int64_t r = mine.begin; r < mine.end; ++r) {
      float* const query = workspace.qkv.data() + r * workspace.qkv_stride;
      if (heads.begin == 0) normalize_part(query, weights.query_norm, shape.query_dim());
      if (heads.end > shape.heads) {
        normalize_part(query + shape.query_dim(), weights.key_norm, shape.kv_dim());
      }
    }
  });
  team_.barrier();
}

KvPages Attention::pages_of(const AttentionItem& item, int layer, const LayerRows& rows) const {
  const AttentionTask task = attention_task(context_, item, layer, rows);
  const int32_t keys = visible_keys(task, task.query_tokens - 1);
  const int32_t pages = (keys + kPageTokens - 1) / kPageTokens;
  const int32_t first = std::max(item.partition * kPartitionTokens, first_key(task, 0)) / kPageTokens;
  return {task.kv, first, pages - first};
}

void Attention::attend_item(const AttentionItem& item, const KvPages& upcoming, int layer,
                            const LayerRows& rows) {
  const KernelTable& kernels = context_.kernels;
  std::byte* const scratch = team_.own().attention_scratch.data();
  AttentionTask task = attention_task(context_, item, layer, rows);
  task.upcoming = upcoming;
  const bool bf16 = attends_in_bf16(context_, item, layer);
  if (item.partition < 0) return (bf16 ? kernels.attention_bf16 : kernels.attention)(task, scratch);
  const size_t queries = size_t(item.query_tokens) * size_t(item.heads);
  const size_t state = size_t(item.partition - first_partition(task)) * queries *
                       size_t(state_floats(context_.config.shape(layer).head_dim));
  const auto attend_partition = bf16 ? kernels.attention_bf16_partition : kernels.attention_partition;
  attend_partition(task, item.partition, context_.workspace.states.data() + item.states_begin + state,
                   scratch);
}

void Attention::gate_output(int layer, const LayerRows& rows) {
  const Workspace& workspace = context_.workspace;
  team_.barrier();
  team_.share(rows.batch.tokens, [&](Range mine) {
    for (int64_t r = mine.begin; r < mine.end; ++r) {
      context_.kernels.gate_by_sigmoid(workspace.gates.data() + r * workspace.gates_stride,
                                       context_.config.shape(layer).query_dim(),
                                       workspace.attention.data() + r * workspace.attention_stride);
    }
  });
}

// A thread's items are sorted by falling cost, so that others can help with the last ones, and it knows what
// it will read next.
void Attention::attend(int layer, const LayerRows& rows) {
  const AttentionPlan& plan = rows.attention_of(context_.config.layer(layer).attention);
  team_.take_pieces(claim_of(layer, Claim::kAttention), [&](int owner, int piece) {
    const size_t at = plan.first_item[size_t(owner)] + size_t(piece);
    const size_t end = plan.first_item[size_t(owner) + 1];
    if (at >= end) return false;
    const KvPages upcoming = at + 1 < end ? pages_of(plan.items[at + 1], layer, rows) : KvPages{};
    attend_item(plan.items[at], upcoming, layer, rows);
    return true;
  });
  if (!plan.merges.empty()) {
    team_.barrier();
    team_.share(int(plan.merges.size()), [&](Range mine) {
      for (int i = mine.begin; i < mine.end; ++i) {
        const AttentionItem& item = plan.merges[size_t(i)];
        const AttentionTask task = attention_task(context_, item, layer, rows);
        context_.kernels.attention_merge(task, context_.workspace.states.data() + item.states_begin,
                                         partition_count(task));
      }
    });
  }
  if (context_.config.layer(layer).attention.output_gate) gate_output(layer, rows);
  team_.finish_stage(Stage::kAttention);
}

}  // namespace redoubt
