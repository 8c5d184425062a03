// The working memory of a step, allocated once for the largest step. Knows sizes only.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "contract/linear.h"
#include "machine/aligned_memory.h"
#include "model/config.h"
#include "step/routing.h"
#include "step/sharing.h"

namespace redoubt {

// Floats from one row of activations to the next: whole cache lines, and never a multiple of 1 KiB, which
// would put all rows of a column into the same few sets of the first-level cache.
inline constexpr int64_t padded_stride(int64_t cols) {
  const int64_t stride = (cols + 15) / 16 * 16;
  return stride % 256 == 0 ? stride + 16 : stride;
}

// Gate and up are computed this many floats at a time, so that SiLU finds them in the second-level cache.
inline constexpr int64_t kGateChunkFloats = 32 * 1024;
// The chunk size in bf16: processors with AMX have a larger cache, and each chunk reads all rows once.
inline constexpr int64_t kBf16GateChunkFloats = 128 * 1024;

// Rows are normalized this many floats at a time, then quantized: from the first-level cache, and 16 groups
// at once.
inline constexpr int64_t kNormalizedFloats = 4096;

// The fewest rows of logits with memory: with fewer, scoring a prompt would read the head too often.
inline constexpr int32_t kFewestLogitsRows = 16;

// The stages of a layer in which threads claim pieces of work from a counter.
enum class Claim : uint8_t {
  kQkv,
  kQueries,
  kQueryUp,
  kKeyUp,
  kDeltaFactors,
  kAttention,
  kValueUp,
  kOutput,
  kGateUp,
  kDown,
  kRouter,
  kExpertsGateUp,
  kExpertsDown,
  kInputProjection,  // of the first layer
  kInputGate,
  kInputOutput,
  kHeadProjection  // of the first layer
};
inline constexpr int kClaimsPerLayer = 17;
inline constexpr int claim_of(int layer, Claim claim) { return layer * kClaimsPerLayer + int(claim); }
// Chunks of the head alternate between two claims, which come after the layers'.
inline constexpr int head_claim(int layers, int chunk) { return layers * kClaimsPerLayer + chunk % 2; }

// Counts which pieces of each stage's work are taken. Every thread has its own counter for each claim; other
// threads increment it too, to take pieces of its share.
class ClaimCounters {
 public:
  ClaimCounters(int claims, int threads)
      : claims_(size_t(claims)), counters_(size_t(threads) * stride(claims_)) {}

  std::atomic<int>& of(int claim, int thread) {
    return counters_[size_t(thread) * stride(claims_) + size_t(claim)];
  }
  void reset(int thread) {
    for (size_t i = 0; i < claims_; ++i) of(int(i), thread).store(0, std::memory_order_relaxed);
  }

 private:
  // Whole cache lines, with an unused one between two threads.
  static size_t stride(size_t claims) { return (claims + 31) / 16 * 16; }

  size_t claims_;
  std::vector<std::atomic<int>> counters_;
};

// Memory of quantized rows, for any group.
struct IntegerRows {
  AlignedMemory<int8_t> values;
  AlignedMemory<int8_t> low_values;  // the second of two terms
  AlignedMemory<float> scales;
  AlignedMemory<int32_t> starts;
  AlignedMemory<float> offsets;

  IntegerRows() = default;
  IntegerRows(int64_t rows, int64_t cols)
      : values(size_t(rows * cols)),
        low_values(size_t(rows * cols)),
        scales(size_t(rows * (cols / kSmallestGroup + 1))),
        starts(size_t(rows * (cols / kSmallestGroup + 1))),
        offsets(size_t(rows * (cols / kSmallestGroup + 1))) {}
  QuantizedRows view(int32_t rows, int32_t cols, int32_t group, bool two_terms) const {
    return {.values = values.data(),
            .low_values = two_terms ? low_values.data() : nullptr,
            .scales = scales.data(),
            .starts = starts.data(),
            .offsets = offsets.data(),
            .rows = rows,
            .cols = cols,
            .group = group};
  }
  size_t bytes() const {
    return values.bytes() + low_values.bytes() + scales.bytes() + starts.bytes() + offsets.bytes();
  }

  static constexpr int64_t kSmallestGroup = 32;
};

// Rows of activations in the forms that a linear kernel may take.
struct InputRows {
  AlignedMemory<float> floats;  // [rows][cols]
  IntegerRows one_term;
  IntegerRows two_terms;
  AlignedMemory<uint16_t> rounded;  // of Bf16Rows

  InputRows() = default;
  // parts: how many parts of the rows may have bf16 blocks of their own.
  InputRows(int64_t rows, int64_t cols, int64_t parts = 1)
      : floats(size_t(rows * cols)),
        one_term(rows, cols),
        two_terms(rows, cols),
        rounded(size_t(Bf16Rows::size(rows, cols) + (parts - 1) * cols)) {}
  size_t bytes() const { return floats.bytes() + one_term.bytes() + two_terms.bytes() + rounded.bytes(); }
};

// State of a layer of experts for its rows.
struct ExpertsWorkspace {
  std::vector<int32_t> experts;       // [rows][per_token]
  std::vector<float> factors;         // likewise
  std::vector<float> shared_factors;  // [rows], of the shared MLP
  ExpertRows sorted;
  InputRows inputs;  // [pairs of a row and an expert][hidden_size]

  ExpertsWorkspace() = default;
  // For the largest of the model's layers; empty without experts.
  ExpertsWorkspace(const ModelConfig& config, int32_t rows);
  size_t bytes() const { return inputs.bytes(); }
};

// What one thread has for itself.
struct ThreadWorkspace {
  InputRows input;            // [kPrivateRows][widest input]
  AlignedMemory<float> rows;  // normalized ones: kNormalizedFloats, at least one [widest input]
  AlignedMemory<float> gate;  // a chunk of gate_proj's output
  AlignedMemory<float> up;    // the same of up_proj's
  AlignedMemory<std::byte> attention_scratch;
  AlignedMemory<float> delta;  // what step/delta.cc's tasks work in
  ExpertsWorkspace experts;    // for kPrivateRows
};

struct Workspace {
  int64_t hidden_stride, qkv_stride, attention_stride, gates_stride, factors_stride, logits_stride,
      angles_stride, scores_stride, query_latents_stride, head_parts_stride, layer_inputs_stride,
      input_gate_stride;
  AlignedMemory<float> hidden;     // [tokens] rows of hidden_size, the residual stream
  AlignedMemory<float> qkv;        // [tokens] rows of qkv_dim, or of a delta's channels
  AlignedMemory<float> attention;  // [tokens] rows of query_dim, or of a delta's values
  AlignedMemory<float> gates;      // likewise: what they are gated by
  AlignedMemory<float> factors;    // [tokens] rows of beta_proj's and decay_proj's outputs
  AlignedMemory<float>
      branch;  // [tokens] rows of hidden_size: what attention or an MLP gives, before its own norm
  AlignedMemory<float> experts_branch;  // likewise, of experts beside an MLP
  AlignedMemory<float> layer_inputs;    // [tokens] rows of all layers' inputs
  AlignedMemory<float> input_gate;      // [tokens] rows of a layer's, times its gate
  AlignedMemory<float> angles;          // [tokens] rows of each rope's angles, and the position
  AlignedMemory<float> logits;          // [logits_rows] rows of vocab_size
  AlignedMemory<float> states;          // partial states of attention, grown as needed
  AlignedMemory<float> query_latents;   // [tokens] rows of query_rank, in latent attention
  // [tokens] rows of all heads' queries before key_up, or of what value_up gives, in latent attention.
  AlignedMemory<float> head_parts;
  // Of the predictor: [tokens] rows of 2 * hidden_size, the token's part and the hidden state's;
  // [max_sequences] rows of hidden_size, its states; of an EAGLE-3 head [tokens] rows of
  // kEagleStates * hidden_size, what it reads of the model.
  int64_t predictor_parts_stride, layer_states_stride;
  AlignedMemory<float> predictor_parts;
  AlignedMemory<float> predictor_states;
  AlignedMemory<float> layer_states;
  InputRows heads;              // [tokens * heads][widest of nope_dim and kv_rank], head by head
  InputRows input;              // [tokens][widest of hidden_size and what an output projection takes]
  InputRows inner;              // [tokens][the widest MLP's inner size]
  AlignedMemory<float> scores;  // [tokens] rows of the routers' outputs
  ExpertsWorkspace experts;     // for all tokens
  InputRows experts_inner;      // [tokens' pairs of a row and an expert][their inner size]
  std::vector<ThreadWorkspace> threads;
  int32_t logits_rows;   // of `logits`: the head computes so many rows at a time
  ClaimCounters claims;  // [layers * kClaimsPerLayer + 2], the head's at the end

  Workspace(const ModelConfig& config, int32_t max_tokens, int32_t max_sequences, int32_t thread_count);
  size_t bytes() const;
  // Makes sure that every thread's scratch memory, and that of the partial states, is large enough.
  void reserve_attention(size_t scratch_bytes, size_t states);
};

}  // namespace redoubt
