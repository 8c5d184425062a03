// What config.json says about a Llama-family model, as plain numbers. Knows nothing of weights or kernels.
#pragma once

#include <cstdint>
#include <string>

#include "weights/model_files.h"

namespace redoubt {

enum class RopeType : uint8_t { kDefault, kLinear, kDynamic, kLlama3, kYarn };

// Rotary embedding (Su et al. 2021) and its scalings; the names are those of Hugging Face's rope_parameters.
struct RopeConfig {
  RopeType type = RopeType::kDefault;
  int32_t rotary_dim = 0;  // leading part of a head that is rotated; even
  double theta = 10000.0;
  double factor = 1.0;
  double original_max_positions = 0;                     // trained length, where the scaling starts
  double low_freq_factor = 1.0, high_freq_factor = 4.0;  // llama3
  double beta_fast = 32.0, beta_slow = 1.0;              // yarn
  double attention_factor = 1.0;                         // yarn: multiplies cosines and sines
  bool truncate = true;                                  // yarn
};

struct ModelConfig {
  std::string model_type;  // "llama", "mistral", "qwen2" or "qwen3"
  int32_t hidden_size = 0;
  int32_t intermediate_size = 0;
  int32_t layers = 0;
  int32_t heads = 0;
  int32_t kv_heads = 0;
  int32_t head_dim = 0;
  int32_t vocab_size = 0;
  int32_t max_positions = 0;
  int32_t sliding_window_tokens = 0;  // 0: none
  float rms_norm_epsilon = 1e-6f;
  bool tied_head = false;
  bool qkv_bias = false;
  bool output_bias = false;  // of o_proj
  bool mlp_bias = false;
  bool qk_norm = false;
  RopeConfig rope;

  int32_t query_dim() const { return heads * head_dim; }
  int32_t kv_dim() const { return kv_heads * head_dim; }
  int32_t qkv_dim() const { return query_dim() + 2 * kv_dim(); }
  int32_t group_heads() const { return heads / kv_heads; }
};

// Reads `path`, a config.json. Throws PackedFileError naming the key that is missing, out of range or not
// supported.
ModelConfig read_model_config(const std::string& path);
// The same of `files`. Throws what they throw, too.
ModelConfig read_model_config(const ModelFiles& files);

}  // namespace redoubt
