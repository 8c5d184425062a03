// Paged attention of one kv head's query group, scalar: defines the result.
//
// Per (query token, head) and partition of kPartitionTokens keys, with q = query * (scale * log2(e)):
//   s_t = fma over ascending d of q[d] k_t[d];  m = max s_t;  p_t = 2^(s_t - m), 0 below 2^kExp2Smallest
//   sum = p_t over kSoftmaxLanes lanes;         o[d] = fma over ascending t of p_t v_t[d]
// Before the maximum, where the task says so, s_t = c tanh(s_t / c), then s_t = fma(slope log2(e), t - i,
// s_t) for a query at position i. Key t of a partition goes to lane t % kSoftmaxLanes, whichever key is seen
// first. The partitions in which a row sees a key merge in ascending order: m' = max, a = 2^(m - m'), b =
// 2^(m_p - m'), o' = fma(o_p, b, o a), the sum alike; at the end o * (1 / sum). A sink is one more partition
// with m_p = sink * log2(e), sum 1 and o_p = 0, merged last: there o * (a * (1 / sum')). Keys that a query
// may not see are never read, so what a page holds past its last token (NaN, even) can't reach a result. A
// NaN or infinite score makes its row NaN, not a plausible number. Over pages of integers a partition is what
// attention/fixed_scalar.cc says, and with bf16 products what attention/bf16_scalar.cc says.
#include "attention/scalar.h"

#include <algorithm>
#include <limits>

#include "contract/kernel_table.h"
#include "simd/scalar.h"

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

// `out` [head_dim] is the unnormalized output.
template <class Page>
State partition_row(const PartitionRow& row, float* out) {
  const KvView& kv = row.kv;
  const auto page_of = [&](int t) {
    return Page(page_block(kv, (row.first + t) / kPageTokens), kv.head_dim);
  };
  float scores[kPartitionTokens];
  State state;
  for (int t = row.seen.begin; t < row.seen.end; ++t) {
    const Page page = page_of(t);
    float score = 0.0f;
    for (int d = 0; d < kv.head_dim; ++d) {
      score = std::fma(row.query[d] * row.scale_log2e, page.key(d, t % kPageTokens), score);
    }
    scores[t] = row.modified(score, t);
    state.max = scores[t] > state.max ? scores[t] : state.max;
  }
  float lanes[kSoftmaxLanes] = {};
  for (int t = row.seen.begin; t < row.seen.end; ++t) {
    scores[t] = exp2_nonpositive(scores[t] - state.max);
    lanes[t % kSoftmaxLanes] += scores[t];
  }
  state.sum = sum_lanes(lanes);
  for (int d = 0; d < kv.head_dim; ++d) out[d] = 0.0f;
  for (int t = row.seen.begin; t < row.seen.end; ++t) {
    const Page page = page_of(t);
    const int at = t % kPageTokens * kv.head_dim;
    for (int d = 0; d < kv.head_dim; ++d) out[d] = std::fma(scores[t], page.value(at + d), out[d]);
  }
  return state;
}

void clear_state(float* state, int head_dim) {
  state[kStateMax] = -std::numeric_limits<float>::infinity();
  state[kStateSum] = 0.0f;
  for (int d = 0; d < head_dim; ++d) state[kStateOutput + d] = 0.0f;
}

// Calls attend(a row, its state) for the rows of a task that see a key of partition p.
template <typename Attend>
void partition_rows(const AttentionTask& task, int p, float* states, const Attend& attend) {
  const int head_dim = task.kv.head_dim;
  for (int i = 0; i < task.query_tokens; ++i) {
    const KeyRange seen = seen_in_partition(task, i, p);
    for (int h = 0; h < task.group_heads; ++h, states += state_floats(head_dim)) {
      if (seen.empty()) {
        clear_state(states, head_dim);
        continue;
      }
      attend(PartitionRow{.kv = task.kv,
                          .query = task.queries + i * task.query_token_stride + h * head_dim,
                          .scale_log2e = task.scale * kLog2eHigh,
                          .position = task.context_before + i,
                          .first = p * kPartitionTokens,
                          .seen = seen,
                          .modifier = score_modifier(task, h)},
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

// What a row's merged output is multiplied with.
float normalizer(const AttentionTask& task, int head, const State& state) {
  if (task.sinks == nullptr) return 1.0f / state.sum;
  const float sink = task.sinks[head] * kLog2eHigh;
  const float max = sink > state.max ? sink : state.max;
  const float keep = exp2_nonpositive(state.max - max), add = exp2_nonpositive(sink - max);
  return keep * (1.0f / (add + state.sum * keep));
}

}  // namespace

void attention_partition(const AttentionTask& task, int p, float* states, void*) {
  partition_rows(task, p, states, [](const PartitionRow& row, float* state) {
    if (is_fixed_point(row.kv.type)) return attention_row_fixed(row, state);
    const auto partition = row.kv.type == KvType::kFp32 ? partition_row<Fp32Page> : partition_row<Bf16Page>;
    const State done = partition(row, state + kStateOutput);
    state[kStateMax] = done.max;
    state[kStateSum] = done.sum;
  });
}

void attention_bf16_partition(const AttentionTask& task, int p, float* states, void*) {
  partition_rows(task, p, states, attention_row_bf16);
}

void attention_merge(const AttentionTask& task, const float* states, int count) {
  const int head_dim = task.kv.head_dim, first = first_partition(task);
  const int64_t rows = int64_t(task.query_tokens) * task.group_heads;
  for (int64_t row = 0; row < rows; ++row) {
    const int i = int(row / task.group_heads), h = int(row % task.group_heads);
    const int own = first_partition(task, i),
              end = std::min(partitions_of(visible_keys(task, i)), first + count);
    float* out = task.output + i * task.output_token_stride + h * head_dim;
    const float* part = states + ((own - first) * rows + row) * state_floats(head_dim);
    State state{part[kStateMax], part[kStateSum]};
    for (int d = 0; d < head_dim; ++d) out[d] = part[kStateOutput + d];
    for (int p = own + 1; p < end; ++p) {
      part += rows * state_floats(head_dim);
      merge_row(state, out, part, head_dim);
    }
    const float factor = normalizer(task, h, state);
    for (int d = 0; d < head_dim; ++d) out[d] *= factor;
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
      if (row.slopes != nullptr) row.slopes += h;
      if (row.sinks != nullptr) row.sinks += h;
      const int first = first_partition(row), count = partition_count(row);
      auto* states = static_cast<float*>(scratch);
      for (int p = 0; p < count; ++p) partition(row, first + p, states + p * state_floats(head_dim), nullptr);
      attention_merge(row, states, count);
    }
  }
}

void attention(const AttentionTask& task, void* scratch) { attend_rows(task, scratch, attention_partition); }

void attention_bf16(const AttentionTask& task, void* scratch) {
  attend_rows(task, scratch, attention_bf16_partition);
}

size_t attention_scratch_bytes(const AttentionTask& task) {
  return size_t(partition_count(task)) * state_floats(task.kv.head_dim) * sizeof(float);
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
