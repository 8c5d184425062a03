// Paged attention of one kv head's query group, scalar: defines the result.
//
// Per (query token, head) and partition of kPartitionTokens keys, with q = query * (scale * log2(e)):
//   s_t = fma over ascending d of q[d] k_t[d];  m = max s_t;  p_t = 2^(s_t - m), 0 below 2^kExp2Smallest
//   sum = p_t over kSoftmaxLanes lanes;         o[d] = fma over ascending t of p_t v_t[d]
// Partitions merge in ascending order: m' = max, a = 2^(m - m'), b = 2^(m_p - m'), o' = fma(o_p, b, o a), the
// sum alike; at the end o * (1 / sum). Keys that a query may not see are never read, so what a page holds
// past its last token (NaN, even) can't reach a result. A NaN or infinite score makes its row NaN, not a
// plausible number. Over pages of integers a partition is what attention/fixed_scalar.cc says, and with bf16
// products what attention/bf16_scalar.cc says.
#include <limits>

#include "contract/kernel_table.h"
#include "simd/scalar.h"

#include "attention/scalar.h"

namespace redoubt::scalar {
namespace {

struct State {
  float max = -std::numeric_limits<float>::infinity();
  float sum = 0.0f;
};

struct Fp32Page {
  const float* keys;
  const float* values;
  Fp32Page(const std::byte* block, int head_dim)
      : keys(reinterpret_cast<const float*>(block)), values(keys + head_dim * kPageTokens) {}
  float key(int d, int slot) const { return keys[d * kPageTokens + slot]; }
  float value(int at) const { return values[at]; }
};

struct Bf16Page {
  const uint16_t* keys;
  const uint16_t* values;
  Bf16Page(const std::byte* block, int head_dim)
      : keys(reinterpret_cast<const uint16_t*>(block)), values(keys + head_dim * kPageTokens) {}
  float key(int d, int slot) const {
    return bf16_to_float(keys[d / 2 * (kPageTokens * 2) + slot * 2 + d % 2]);
  }
  float value(int at) const { return bf16_to_float(values[at]); }
};

// One row's state over `keys` keys from `first` on; `out` [head_dim] is the unnormalized output.
template <class Page>
State partition_row(const KvView& kv, const float* query, float scale_log2e, int first, int keys,
                    float* out) {
  float scores[kPartitionTokens];
  State state;
  for (int t = 0; t < keys; ++t) {
    const Page page(page_block(kv, (first + t) / kPageTokens), kv.head_dim);
    float score = 0.0f;
    for (int d = 0; d < kv.head_dim; ++d) {
      score = std::fma(query[d] * scale_log2e, page.key(d, t % kPageTokens), score);
    }
    scores[t] = score;
    state.max = score > state.max ? score : state.max;
  }
  float lanes[kSoftmaxLanes] = {};
  for (int t = 0; t < keys; ++t) {
    scores[t] = exp2_nonpositive(scores[t] - state.max);
    lanes[t % kSoftmaxLanes] += scores[t];
  }
  state.sum = sum_lanes(lanes);
  for (int d = 0; d < kv.head_dim; ++d) out[d] = 0.0f;
  for (int t = 0; t < keys; ++t) {
    const Page page(page_block(kv, (first + t) / kPageTokens), kv.head_dim);
    const int row = t % kPageTokens * kv.head_dim;
    for (int d = 0; d < kv.head_dim; ++d) out[d] = std::fma(scores[t], page.value(row + d), out[d]);
  }
  return state;
}

// Calls row(task, query, first, keys, state) for the rows of a task and the keys that each sees of partition
// p.
template <typename Row>
void partition_rows(const AttentionTask& task, int p, float* states, const Row& row) {
  const int head_dim = task.kv.head_dim;
  for (int i = 0; i < task.query_tokens; ++i) {
    const int keys = keys_in_partition(visible_keys(task, i), p);
    for (int h = 0; h < task.group_heads; ++h, states += state_floats(head_dim)) {
      row(task, task.queries + i * task.query_token_stride + h * head_dim, p * kPartitionTokens, keys,
          states);
    }
  }
}

void merge_row(State& state, float* out, const float* part, int head_dim) {
  const float part_max = part[kStateMax];
  const float max = part_max > state.max ? part_max : state.max;
  const float keep = exp2_nonpositive(state.max - max), add = exp2_nonpositive(part_max - max);
  state.max = max;
  state.sum = std::fma(part[kStateSum], add, state.sum * keep);
  for (int d = 0; d < head_dim; ++d) out[d] = std::fma(part[kStateOutput + d], add, out[d] * keep);
}

}  // namespace

void attention_partition(const AttentionTask& task, int p, float* states, void*) {
  partition_rows(task, p, states,
                 [](const AttentionTask& of, const float* query, int first, int keys, float* state) {
                   const float scale_log2e = of.scale * kLog2eHigh;
                   if (is_fixed_point(of.kv.type)) {
                     return attention_row_fixed(of.kv, query, scale_log2e, first, keys, state);
                   }
                   const auto partition =
                       of.kv.type == KvType::kFp32 ? partition_row<Fp32Page> : partition_row<Bf16Page>;
                   const State done = partition(of.kv, query, scale_log2e, first, keys, state + kStateOutput);
                   state[kStateMax] = done.max;
                   state[kStateSum] = done.sum;
                 });
}

void attention_bf16_partition(const AttentionTask& task, int p, float* states, void*) {
  partition_rows(task, p, states,
                 [](const AttentionTask& of, const float* query, int first, int keys, float* state) {
                   attention_row_bf16(of.kv, query, of.scale * kLog2eHigh, first, keys, state);
                 });
}

void attention_merge(const AttentionTask& task, const float* states, int count) {
  const int head_dim = task.kv.head_dim;
  const int64_t rows = int64_t(task.query_tokens) * task.group_heads;
  for (int64_t row = 0; row < rows; ++row) {
    const int i = int(row / task.group_heads), h = int(row % task.group_heads);
    float* out = task.output + i * task.output_token_stride + h * head_dim;
    const float* part = states + row * state_floats(head_dim);
    State state{part[kStateMax], part[kStateSum]};
    for (int d = 0; d < head_dim; ++d) out[d] = part[kStateOutput + d];
    const int own = partitions_of(visible_keys(task, i));
    for (int p = 1; p < count && p < own; ++p) {
      part += rows * state_floats(head_dim);
      merge_row(state, out, part, head_dim);
    }
    const float inverse = 1.0f / state.sum;
    for (int d = 0; d < head_dim; ++d) out[d] *= inverse;
  }
}

// One row at a time, so that the states fit the scratch memory for every task.
template <typename Partition>
static void attend_rows(const AttentionTask& task, void* scratch, const Partition& partition) {
  const int head_dim = task.kv.head_dim;
  for (int i = 0; i < task.query_tokens; ++i) {
    for (int h = 0; h < task.group_heads; ++h) {
      AttentionTask row = task;
      row.queries += i * task.query_token_stride + h * head_dim;
      row.output += i * task.output_token_stride + h * head_dim;
      row.query_tokens = row.group_heads = 1;
      row.context_before += i;
      const int count = partitions_of(visible_keys(row, 0));
      auto* states = static_cast<float*>(scratch);
      for (int p = 0; p < count; ++p) partition(row, p, states + p * state_floats(head_dim), nullptr);
      attention_merge(row, states, count);
    }
  }
}

void attention(const AttentionTask& task, void* scratch) { attend_rows(task, scratch, attention_partition); }

void attention_bf16(const AttentionTask& task, void* scratch) {
  attend_rows(task, scratch, attention_bf16_partition);
}

size_t attention_scratch_bytes(const AttentionTask& task) {
  const int count = partitions_of(visible_keys(task, task.query_tokens - 1));
  return size_t(count) * state_floats(task.kv.head_dim) * sizeof(float);
}

}  // namespace redoubt::scalar

namespace redoubt {

void fill_attention_scalar(KernelTable& table) {
  table.attention = scalar::attention;
  table.attention_partition = scalar::attention_partition;
  table.attention_merge = scalar::attention_merge;
  table.attention_scratch_bytes = scalar::attention_scratch_bytes;
  table.attention_bf16 = scalar::attention_bf16;
  table.attention_bf16_partition = scalar::attention_bf16_partition;
  table.attention_bf16_scratch_bytes = scalar::attention_scratch_bytes;
}

}  // namespace redoubt
