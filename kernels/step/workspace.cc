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

}  // namespace

Workspace::Workspace(const ModelConfig& config, int32_t max_tokens, int32_t max_sequences,
                     int32_t thread_count)
    : hidden_stride(padded_stride(config.hidden_size)),
      qkv_stride(padded_stride(config.qkv_dim())),
      attention_stride(padded_stride(config.query_dim())),
      logits_stride(padded_stride(config.vocab_size)),
      logits_rows(std::max(max_sequences, std::min(max_tokens, kFewestLogitsRows))),
      claims(config.layers * kClaimsPerLayer + 2, thread_count) {
  const int64_t tokens = max_tokens;
  const int64_t widest = std::max(config.hidden_size, config.query_dim());
  hidden = AlignedMemory<float>(size_t(tokens * hidden_stride));
  qkv = AlignedMemory<float>(size_t(tokens * qkv_stride));
  attention = AlignedMemory<float>(size_t(tokens * attention_stride));
  angles = AlignedMemory<float>(size_t(tokens * config.rope.rotary_dim));
  logits = AlignedMemory<float>(size_t(logits_rows * logits_stride));
  input = InputRows(tokens, widest);
  inner = InputRows(tokens, config.intermediate_size);
  for (int32_t thread = 0; thread < thread_count; ++thread) {
    ThreadWorkspace& own = threads.emplace_back();
    own.input = InputRows(kPrivateRows, widest);
    own.rows = AlignedMemory<float>(size_t(std::max<int64_t>(widest, kNormalizedFloats)));
    own.gate = AlignedMemory<float>(gate_chunk_floats(max_tokens));
    own.up = AlignedMemory<float>(gate_chunk_floats(max_tokens));
  }
}

size_t Workspace::bytes() const {
  size_t total = hidden.bytes() + qkv.bytes() + attention.bytes() + angles.bytes() + logits.bytes() +
                 states.bytes() + input.bytes() + inner.bytes();
  for (const ThreadWorkspace& own : threads) {
    total += own.input.bytes() + own.rows.bytes() + own.gate.bytes() + own.up.bytes() +
             own.attention_scratch.bytes();
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
