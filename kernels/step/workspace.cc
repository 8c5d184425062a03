// Sizes of a step's memory. Untouched parts (the floats of an int8 model, say) are never resident.
#include "step/workspace.h"

#include <algorithm>

namespace redoubt {
namespace {

// Floats of a chunk of gate_proj's output: the larger kind, but at least one unit of columns for all rows.
size_t gate_chunk_floats(int32_t max_tokens) {
  constexpr int64_t kLargestGroup = 128;
  return size_t(std::max(kBf16GateChunkFloats, int64_t(max_tokens) * kLargestGroup));
}

// Sizes that the layers with experts need, each the largest of any.
struct MostExperts {
  int32_t count = 0;
  int32_t per_token = 0;
  int32_t inner = 0;
};
MostExperts most_experts(const ModelConfig& config) {
  MostExperts most;
  for (const LayerConfig& kind : config.kinds) {
    if (!kind.experts) continue;
    most.count = std::max(most.count, kind.experts->count);
    most.per_token = std::max(most.per_token, kind.experts->per_token);
    most.inner = std::max(most.inner, kind.experts->mlp.inner);
  }
  return most;
}

bool has_output_norms(const ModelConfig& config) {
  return std::any_of(config.kinds.begin(), config.kinds.end(), [](const LayerConfig& kind) {
    return kind.attention_output_norm || kind.mlp_output_norm;
  });
}

int64_t angles_of_row(const ModelConfig& config) {
  int64_t count = 1;
  for (const RopeConfig& rope : config.ropes) count += rope.rotary_dim;
  return count;
}

}  // namespace

ExpertsWorkspace::ExpertsWorkspace(const ModelConfig& config, int32_t rows) {
  const MostExperts most = most_experts(config);
  if (most.count == 0) return;
  const int64_t pairs = int64_t(rows) * most.per_token;
  experts.resize(size_t(pairs));
  factors.resize(size_t(pairs));
  shared_factors.resize(size_t(rows));
  sorted = ExpertRows(pairs, most.count);
  inputs = InputRows(pairs, config.hidden_size, most.count);
}

Workspace::Workspace(const ModelConfig& config, int32_t max_tokens, int32_t max_sequences,
                     int32_t thread_count)
    : hidden_stride(padded_stride(config.hidden_size)),
      qkv_stride(padded_stride(config.qkv_dim())),
      attention_stride(padded_stride(config.query_dim())),
      logits_stride(padded_stride(config.vocab_size)),
      angles_stride(angles_of_row(config)),
      scores_stride(padded_stride(most_experts(config).count)),
      logits_rows(std::max(max_sequences, std::min(max_tokens, kFewestLogitsRows))),
      claims(config.layers * kClaimsPerLayer + 2, thread_count) {
  const int64_t tokens = max_tokens;
  const int64_t widest = std::max(config.hidden_size, config.query_dim());
  hidden = AlignedMemory<float>(size_t(tokens * hidden_stride));
  qkv = AlignedMemory<float>(size_t(tokens * qkv_stride));
  attention = AlignedMemory<float>(size_t(tokens * attention_stride));
  if (has_output_norms(config)) branch = AlignedMemory<float>(size_t(tokens * hidden_stride));
  angles = AlignedMemory<float>(size_t(tokens * angles_stride));
  logits = AlignedMemory<float>(size_t(logits_rows * logits_stride));
  input = InputRows(tokens, widest);
  inner = InputRows(tokens, config.widest_inner());
  if (const MostExperts most = most_experts(config); most.count > 0) {
    scores = AlignedMemory<float>(size_t(tokens * scores_stride));
    experts = ExpertsWorkspace(config, max_tokens);
    experts_inner = InputRows(tokens * most.per_token, most.inner, most.count);
  }
  for (int32_t thread = 0; thread < thread_count; ++thread) {
    ThreadWorkspace& own = threads.emplace_back();
    own.input = InputRows(kPrivateRows, widest);
    own.rows = AlignedMemory<float>(size_t(std::max<int64_t>(widest, kNormalizedFloats)));
    own.experts = ExpertsWorkspace(config, kPrivateRows);
    own.gate = AlignedMemory<float>(gate_chunk_floats(max_tokens));
    own.up = AlignedMemory<float>(gate_chunk_floats(max_tokens));
  }
}

size_t Workspace::bytes() const {
  size_t total = branch.bytes() + scores.bytes() + experts.bytes() + experts_inner.bytes() + hidden.bytes() +
                 qkv.bytes() + attention.bytes() + angles.bytes() + logits.bytes() + states.bytes() +
                 input.bytes() + inner.bytes();
  for (const ThreadWorkspace& own : threads) {
    total += own.input.bytes() + own.rows.bytes() + own.gate.bytes() + own.up.bytes() +
             own.attention_scratch.bytes() + own.experts.bytes();
  }
  return total;
}

void Workspace::reserve_attention(size_t scratch_bytes, size_t state_count) {
  for (ThreadWorkspace& own : threads) {
    if (own.attention_scratch.bytes() < scratch_bytes) {
      own.attention_scratch = AlignedMemory<std::byte>(scratch_bytes);
    }
  }
  if (states.bytes() < state_count * sizeof(float)) states = AlignedMemory<float>(state_count);
}

}  // namespace redoubt
