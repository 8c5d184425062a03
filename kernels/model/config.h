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

struct AttentionConfig {
  float scale = 1.0f;         // of queries times keys
  int32_t rope = -1;          // which of ModelConfig::ropes; -1: none
  int32_t window = 0;         // keys that a token sees, itself included; 0: all
  float softcap = 0.0f;       // scores become softcap * tanh(score / softcap); 0: they stay
  bool sinks = false;         // a learned score a head, without a value
  std::vector<float> slopes;  // ALiBi, by head; empty: none
  QkNorm qk_norm = QkNorm::kNone;
  // Queries are multiplied by 1 + scale * log(1 + floor(position / positions)); scale 0: not.
  float temperature_scale = 0.0f;
  int32_t temperature_positions = 0;
  bool qkv_bias = false;
  bool output_bias = false;
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
};

// One kind of layer. With x the residual stream and the norms that are there:
//   x += norm(attention(norm(x))); x += norm(mlp(norm(x)))
// parallel: both read the x from before the layer.
struct LayerConfig {
  AttentionConfig attention;
  std::optional<MlpConfig> mlp;  // an MLP or experts
  std::optional<ExpertsConfig> experts;
  bool attention_norm = true;
  bool attention_output_norm = false;
  bool mlp_norm = true;  // if false and parallel: the MLP takes the attention's normalized input
  bool mlp_output_norm = false;
  bool parallel = false;
};

struct ModelConfig {
  int32_t vocab_size = 0;
  int32_t hidden_size = 0;
  int32_t max_positions = 0;
  int32_t layers = 0;
  int32_t heads = 0;
  int32_t kv_heads = 0;
  int32_t head_dim = 0;
  std::vector<RopeConfig> ropes;
  NormType norm = NormType::kRms;
  float norm_epsilon = 1e-6f;
  bool norm_bias = false;
  bool final_norm = true;
  float embedding_scale = 1.0f;
  bool embedding_norm = false;
  bool tied_head = false;
  bool head_bias = false;
  float logit_scale = 1.0f;
  float logit_softcap = 0.0f;
  std::vector<LayerConfig> kinds;
  std::vector<int32_t> kind_of_layer;  // [layers]

  const LayerConfig& layer(int number) const { return kinds[size_t(kind_of_layer[size_t(number)])]; }
  int32_t query_dim() const { return heads * head_dim; }
  int32_t kv_dim() const { return kv_heads * head_dim; }
  int32_t qkv_dim() const { return query_dim() + 2 * kv_dim(); }
  int32_t group_heads() const { return heads / kv_heads; }
  // The widest MLP that takes all rows, of any layer; 0 where there are only experts.
  int32_t widest_inner() const;
};

// Reads a description. path: for messages. Throws PackedFileError naming the key that is missing, out of
// range or not supported.
ModelConfig read_model_config(const std::string& path, std::string_view description);

}  // namespace redoubt
