// What a packed model's description says (its file's __metadata__["decoder"]; quant/families/description.py
// explains every key), as plain numbers. Knows no families, weights or kernels.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "contract/activation.h"

namespace redoubt {

// Dynamic NTK (bloc97 and emozilla, 2023): past the trained length theta grows with the position.
struct DynamicRope {
  double theta = 10000.0;
  double factor = 1.0;
  int32_t trained_positions = 0;
};

// Rotary embedding (Su et al. 2021) of the leading part of a head.
struct RopeConfig {
  int32_t rotary_dim = 0;           // even
  std::vector<double> frequencies;  // radians a position, [rotary_dim / 2]; all scaling is in them
  double attention_factor = 1.0;    // multiplies cosines and sines
  std::optional<DynamicRope> dynamic;
  // LongRoPE: what is used instead where contexts may be longer than short_positions. Empty: nothing.
  std::vector<double> long_frequencies;
  int32_t short_positions = 0;
  double long_attention_factor = 1.0;
};

enum class NormType : uint8_t { kRms, kLayer };
enum class QkNorm : uint8_t { kNone, kHead, kRow };
enum class Scoring : uint8_t { kSoftmax, kSigmoid, kSoftmaxOfChosen };

// Multi-head latent attention (DeepSeek-V2, 2024): one key and value head of rope_dim + kv_rank for all
// heads (quant/families/description.py).
struct LatentConfig {
  int32_t kv_rank = 0;
  int32_t nope_dim = 0;
  int32_t rope_dim = 0;
  int32_t value_dim = 0;
  int32_t query_rank = 0;  // 0: queries are made of the layer's input
  float norm_epsilon = 1e-6f;

  int32_t query_dim() const { return rope_dim + nope_dim; }  // of a head, before key_up
};

// The heads of one kind of attention.
struct HeadShape {
  int32_t heads = 0;
  int32_t kv_heads = 0;
  int32_t head_dim = 0;

  int32_t query_dim() const { return heads * head_dim; }
  int32_t kv_dim() const { return kv_heads * head_dim; }
  int32_t qkv_dim() const { return query_dim() + 2 * kv_dim(); }
  int32_t group_heads() const { return heads / kv_heads; }
  bool operator==(const HeadShape&) const = default;
};

struct AttentionConfig {
  HeadShape shape;
  float scale = 1.0f;         // of queries times keys
  int32_t rope = -1;          // which of ModelConfig::ropes; -1: none
  int32_t window = 0;         // keys that a token sees, itself included; 0: all
  bool causal = true;         // or it sees as many after itself as before itself
  float softcap = 0.0f;       // scores become softcap * tanh(score / softcap); 0: they stay
  bool sinks = false;         // a learned score a head, without a value
  std::vector<float> slopes;  // ALiBi, by head; empty: none
  QkNorm qk_norm = QkNorm::kNone;
  // Queries are multiplied by 1 + scale * log(1 + floor(position / positions)); scale 0: not.
  float temperature_scale = 0.0f;
  int32_t temperature_positions = 0;
  bool qkv_bias = false;
  bool output_bias = false;
  bool value_norm = false;  // an RMS norm of each value head, without a weight
  // The layer whose keys and values this one reads; it stores none. -1: its own.
  int32_t keys_of = -1;
  bool value_is_key = false;  // values are what the key projection gives, before the key's norm and rotation
  std::optional<LatentConfig> latent;
  bool output_gate = false;  // the output is multiplied by sigmoid(gate_proj(x))

  // How many keys after its own a token sees, if they are there.
  int32_t ahead() const { return causal ? 0 : window > 0 ? window - 1 : kAllAhead; }
  static constexpr int32_t kAllAhead = 1 << 24;
};

// Gated DeltaNet (Yang et al. 2024), which contract/delta.h computes.
struct DeltaConfig {
  int32_t key_heads = 0;
  int32_t value_heads = 0;  // a multiple of key_heads
  int32_t key_dim = 0;
  int32_t value_dim = 0;
  int32_t taps = 4;  // tokens that the convolution sees, its own included

  int32_t keys() const { return key_heads * key_dim; }
  int32_t values() const { return value_heads * value_dim; }
  int32_t channels() const { return 2 * keys() + values(); }
  bool operator==(const DeltaConfig&) const = default;
};

// A gated causal convolution of each channel of the hidden size (LFM2), which contract/convolution.h
// computes.
struct ConvConfig {
  int32_t taps = 3;  // tokens that it sees, its own included
  bool bias = false;
};

struct MlpConfig {
  int32_t inner = 0;
  Activation activation = Activation::kSilu;
  bool gated = true;
  bool bias = false;
};

struct ExpertsConfig {
  int32_t count = 0;
  int32_t per_token = 0;
  MlpConfig mlp;  // of each expert
  bool router_bias = false;
  Scoring scoring = Scoring::kSoftmax;
  bool correction_bias = false;  // added to scores for the choice only
  int32_t groups = 1;
  int32_t chosen_groups = 1;
  bool renormalize = false;  // factors are divided by their sum
  float scale = 1.0f;        // of factors
  std::optional<MlpConfig> shared;
  bool shared_gate = false;
  bool router_norm = false;   // the router's input is the residual stream after a norm of its own
  bool expert_scale = false;  // a learned number an expert multiplies its factor
};

// One kind of layer. With x the residual stream and the norms that are there:
//   x += norm(attention(norm(x))); x += norm(mlp(norm(x)))
// norms_sum: the outer norms are of the sums: x = norm(x + attention(norm(x))); x = norm(x + mlp(norm(x)))
// parallel: both read the x from before the layer. With an MLP and experts the second line is
//   x += norm(norm(mlp(norm(x))) + norm(experts(norm(x))))
struct LayerConfig {
  AttentionConfig attention;         // means nothing where there is a delta or a conv
  std::optional<DeltaConfig> delta;  // in attention's place; of one size in the whole model
  std::optional<ConvConfig> conv;    // likewise
  std::optional<MlpConfig> mlp;      // an MLP, experts, or both
  std::optional<ExpertsConfig> experts;
  bool attention_norm = true;
  bool attention_output_norm = false;
  bool mlp_norm = true;  // if false and parallel: the MLP takes the attention's normalized input
  bool mlp_output_norm = false;
  bool norms_sum = false;
  bool parallel = false;
  bool scaled = false;  // a learned number multiplies x at the layer's end

  // Whether it keeps earlier tokens in state pages, not in keys and values.
  bool keeps_state() const { return delta || conv; }
  bool has_both() const { return mlp && experts; }
};

// Inputs of layers beside the residual stream: a token's own, from an embedding of all layers' inputs and
// from the token's embedding (kernels/step/layer_inputs.h).
struct LayerInputsConfig {
  int32_t size = 0;  // of a layer's
  float embedding_scale = 1.0f;
  Activation activation = Activation::kSilu;
};

// A layer that drafts the token after the next (kernels/step/predictor.h): one of multi-token prediction
// (DeepSeek-V3, 2024, section 2.2), or an EAGLE-3 head (Li et al. 2025).
struct PredictorConfig {
  int32_t kind = 0;         // of the layer
  int32_t head_tokens = 0;  // rows of its own head; 0: it uses the model's
  bool eagle = false;
  // The rest is an EAGLE-3 head's. After how many of the model's layers the hidden states are taken that it
  // reads; empty in a head's own file: after the usual ones.
  std::vector<int32_t> states;
  bool input_norm = false;           // those states together have a norm
  bool normalized_residual = false;  // the layer adds to the hidden state after its norm, not before it
  bool normalized_output = false;    // the next draft takes the state after the output norm, not before it
};
inline constexpr int32_t kEagleStates = 3;

struct ModelConfig {
  int32_t vocab_size = 0;
  int32_t hidden_size = 0;
  int32_t max_positions = 0;
  int32_t layers = 0;
  int32_t heads = 0;
  int32_t kv_heads = 0;  // these two: of attention that does not say otherwise
  int32_t head_dim = 0;
  std::vector<RopeConfig> ropes;
  NormType norm = NormType::kRms;
  float norm_epsilon = 1e-6f;
  bool norm_bias = false;
  bool final_norm = true;
  float embedding_scale = 1.0f;
  bool embedding_norm = false;  // of the embedding with what is added to it
  // Columns of the embedding and the head, which projections join to hidden_size; 0: hidden_size, and none.
  int32_t embedding_size = 0;
  bool learned_positions = false;  // a vector for each of max_positions is added to the embedding
  // Of tokens, each with a vector that is added too: type t's positions are t * max_positions and those
  // after.
  int32_t token_types = 0;
  bool tied_head = false;
  bool head_bias = false;
  float logit_scale = 1.0f;
  float logit_softcap = 0.0f;
  std::optional<LayerInputsConfig> layer_inputs;
  // Whether every sequence is computed in one step, so that no layer's keys and values are kept after it.
  bool encoder = false;
  std::vector<LayerConfig> kinds;
  std::optional<PredictorConfig> predictor;
  std::vector<int32_t> kind_of_layer;  // [layers], and the predictor's

  const LayerConfig& layer(int number) const { return kinds[size_t(kind_of_layer[size_t(number)])]; }
  // Layers that are computed: the predictor's comes after the model's.
  int32_t computed_layers() const { return layers + (predictor ? 1 : 0); }
  bool is_predictor(int number) const { return number == layers; }
  bool is_eagle() const { return predictor && predictor->eagle; }
  // An EAGLE-3 head's own file: it has no layers of a model.
  bool is_head() const { return layers == 0; }
  // Whether the first layer gets the tokens' embeddings as they are.
  bool has_plain_embeddings() const {
    return embedding_size == 0 && !layer_inputs && !learned_positions && token_types == 0 && !embedding_norm;
  }
  // Inputs of a layer's query, key and value.
  int32_t attention_inputs(int number) const {
    return is_predictor(number) && is_eagle() ? 2 * hidden_size : hidden_size;
  }
  // Makes the head the predictor, instead of the model's own. Throws std::invalid_argument for one that is
  // not for this model.
  void add_head(const ModelConfig& head);
  void leave_predictor_out() {
    predictor.reset();
    kind_of_layer.resize(size_t(layers));
  }
  int32_t embedding_cols() const { return embedding_size > 0 ? embedding_size : hidden_size; }
  const HeadShape& shape(int number) const { return layer(number).attention.shape; }
  // The last layer that stores keys and values: in later layers each row depends on itself alone.
  int32_t last_storing_layer() const;
  // The widest query, and the widest query, key and value together, of any layer.
  int32_t widest_query_dim() const;
  int32_t widest_qkv_dim() const;
  // Inputs of the output projection.
  int32_t output_inputs(const LayerConfig& layer) const {
    if (layer.delta) return layer.delta->values();
    if (layer.conv) return hidden_size;
    const AttentionConfig& attention = layer.attention;
    return attention.latent ? heads * attention.latent->value_dim : attention.shape.query_dim();
  }
  // The model's layers of Gated DeltaNet, or null; likewise of gated convolution.
  const DeltaConfig* delta() const;
  const ConvConfig* conv() const;
  bool keeps_states() const { return delta() != nullptr || conv() != nullptr; }
  // The widest MLP that takes all rows, of any layer; 0 where there are only experts.
  int32_t widest_inner() const;
};

// Reads a description. path: for messages. Throws PackedFileError naming the key that is missing, out of
// range or not supported.
ModelConfig read_model_config(const std::string& path, std::string_view description);

}  // namespace redoubt
