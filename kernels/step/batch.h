// Inputs, outputs and timings of one step of the model. Knows neither the model nor how it is computed.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace redoubt {

class PromptReader;
class Sampler;

// Activations in products with integer weights. kAuto is kBf16 where the tier is fast with it, else kInt8.
enum class ComputeType : uint8_t { kAuto, kInt8, kBf16, kFp32 };
// Activations in products of prompts: kBf16 even if decoding uses kInt8. kAuto is kBf16 where the tier is
// fast with it.
enum class PromptComputeType : uint8_t { kSame, kBf16, kAuto };

// Which products are of bf16 numbers.
struct Bf16Uses {
  bool prompts = false;  // attention too
  bool all = false;
};

// What a step of an encoder computes of a layer: everything, or of some rows their keys and values, or of
// some rows what follows when all rows have those.
enum class LayerPart : uint8_t { kWhole, kKeys, kRest };

// A ragged batch: the sequences' new tokens one after another.
struct Batch {
  int32_t tokens = 0;
  int32_t sequences = 0;
  const int32_t* token_ids = nullptr;  // [tokens]
  // [tokens][hidden_size] or null: input of the first layer instead of the tokens' embeddings. Not copied.
  const float* hidden_states = nullptr;
  const int32_t* positions = nullptr;        // [tokens], for RoPE
  const int32_t* slots = nullptr;            // [sequences], rows of the page table
  const int32_t* query_lengths = nullptr;    // [sequences], new tokens; they add up to `tokens`
  const int32_t* context_lengths = nullptr;  // [sequences], keys before this step
  // [sequences] or null: how many of a sequence's last new tokens are draft tokens, to be compared with what
  // is sampled from the row before each.
  const int32_t* draft_lengths = nullptr;
  // How many of the last sequences have prompt tokens here; those before them decode.
  int32_t prompts = 0;
  // Of an encoder: the layers that this call computes, from the first one's input on, which the call before
  // it has left for the same batch. end_layer 0: all.
  int32_t first_layer = 0;
  int32_t end_layer = 0;
  // Other than kWhole: what is computed of rows first_row .. end_row of the one layer.
  LayerPart part = LayerPart::kWhole;
  int32_t first_row = 0;
  int32_t end_row = 0;
  // [sequences] or null, set by the model: a sequence's keys, where they are not those before this step and
  // its new tokens'.
  const int32_t* key_lengths = nullptr;
  // Once another thread has made it other than 0, the step ends at its next layer; null: it does not. Not
  // copied.
  const int32_t* interrupt = nullptr;

  bool is_interrupted() const {
    return interrupt != nullptr && __atomic_load_n(interrupt, __ATOMIC_RELAXED) != 0;
  }
  int32_t answers() const { return sequences - prompts; }
  int32_t keys(int32_t sequence) const {
    return key_lengths == nullptr ? context_lengths[sequence] + query_lengths[sequence]
                                  : key_lengths[sequence];
  }
  int32_t drafts(int32_t sequence) const { return draft_lengths == nullptr ? 0 : draft_lengths[sequence]; }
};

// Thrown by a step that has ended early. Nothing was sampled or read, so that the same step can be computed
// again.
struct StepInterrupted {};

// A batch with its own arrays, which nobody else can change between their check and their use.
class BatchCopy {
 public:
  // Valid until the next call. The caller checks the sizes.
  const Batch& copy(const Batch& given);

 private:
  Batch batch_;
  std::vector<int32_t> token_ids_, positions_;
  std::vector<int32_t> slots_, query_lengths_, context_lengths_, draft_lengths_;
};

// Places in a layer, in the order in which they are computed where the MLP comes after attention.
enum class TapPlace : uint8_t {
  kAttentionInput,
  kQueryInput,
  kKeyUpInput,
  kValueUpInput,
  kOutputInput,
  kAttentionOutput,
  kMlpInput,
  kPairs,
  kDownInput,
  kEnd
};

// The activations of the last layer's stages, for all of the batch's tokens [tokens][...] in fp32; null where
// not wanted. Stages after the last wanted one are not computed.
struct LayerTap {
  float* attention_input = nullptr;  // [hidden_size], of query, key and value
  // In latent attention: of q_b_proj, key_up_proj and value_up_proj.
  float* query_input = nullptr;     // [query_rank]
  float* key_up_input = nullptr;    // [heads][nope_dim]
  float* value_up_input = nullptr;  // [heads][kv_rank]
  float* output_input = nullptr;    // [what the output projection takes]
  // What attention leaves where it writes: the residual stream, or its own part of it before a norm.
  float* attention_output = nullptr;  // [hidden_size]
  float* mlp_input = nullptr;         // [hidden_size]
  // [tokens * per_token][2]: a token and one of its experts, by expert and then by token.
  int32_t* pairs = nullptr;
  float* down_input = nullptr;  // [inner]; with experts a row for each of the pairs
  float* shared_down_input = nullptr;
  // For a layer with an MLP and experts: the experts' input, and the MLP's activations (mlp_input is the
  // MLP's).
  float* experts_input = nullptr;     // [hidden_size]
  float* dense_down_input = nullptr;  // [inner]
  float* mlp_output = nullptr;        // [hidden_size], as attention_output
  float* hidden = nullptr;            // [hidden_size], after the layer

  TapPlace last() const {
    if (hidden != nullptr || mlp_output != nullptr) return TapPlace::kEnd;
    if (down_input != nullptr || shared_down_input != nullptr) return TapPlace::kDownInput;
    if (pairs != nullptr || experts_input != nullptr || dense_down_input != nullptr) return TapPlace::kPairs;
    if (mlp_input != nullptr) return TapPlace::kMlpInput;
    if (attention_output != nullptr) return TapPlace::kAttentionOutput;
    if (output_input != nullptr) return TapPlace::kOutputInput;
    if (value_up_input != nullptr) return TapPlace::kValueUpInput;
    if (key_up_input != nullptr) return TapPlace::kKeyUpInput;
    return query_input != nullptr ? TapPlace::kQueryInput : TapPlace::kAttentionInput;
  }
};

// The wanted outputs of a step; null where not wanted.
struct StepOutputs {
  Sampler* const* samplers = nullptr;  // [sequences], null for a sequence that is not sampled
  // One entry per sequence and one more per draft token, in order. A sequence is sampled up to the first
  // token that differs from the draft; later entries, and those that are not sampled at all, are -1.
  int32_t* sampled = nullptr;
  PromptReader* const* readers = nullptr;  // [sequences], null for a sequence whose prompt nobody reads
  float* logits = nullptr;                 // [tokens][vocab_size]
  float* hidden_states = nullptr;          // [layers + 2][tokens][hidden_size]
  float* final_hidden = nullptr;           // [tokens][hidden_size], after the final norm
  const LayerTap* tap = nullptr;
};

// Where a step's time goes, as thread 0 sees it. A stage includes the barrier at its end.
enum class Stage : uint8_t {
  kEmbed,
  kQkv,
  kRope,
  kAttention,
  kStates,
  kOutput,
  kRouter,
  kGateUp,
  kDown,
  kHead,
  kSample
};
inline constexpr int kStages = 11;
inline constexpr std::array<const char*, kStages> kStageNames = {
    "embed", "qkv", "rope", "attention", "states", "output", "router", "gate_up", "down", "head", "sample"};

// Of one stage, in ticks of the processor's clock.
struct StageTicks {
  uint64_t all = 0;
  uint64_t products = 0;  // in matrix products
  uint64_t barriers = 0;  // waiting for the other threads
};

// Steps in which a prompt is read, whatever else they compute, and those in which all sequences decode.
enum class StepKind : uint8_t { kPrompt, kDecode };
inline constexpr int kStepKinds = 2;
inline constexpr std::array<const char*, kStepKinds> kStepKindNames = {"prompt", "decode"};

struct StepProfile {
  std::array<std::array<StageTicks, kStages>, kStepKinds> ticks{};
  std::array<uint64_t, kStepKinds> steps{};
};

}  // namespace redoubt
