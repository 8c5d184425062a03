// The tensors of a Llama-family model by the place where they are used: views into one mapped file.
#pragma once

#include <string>
#include <vector>

#include "model_config.h"
#include "packed_matrix.h"
#include "weights.h"

namespace redoubt {

// y = x W^T + bias; bias is null where the family has none.
struct Linear {
  PackedMatrix weight;
  const float* bias = nullptr;
  // Quantized inputs have one int8 term, or two: x = d1 q1 + d2 q2, where the second term is what
  // quantization to the first has lost, quantized in turn (about 15 bits). Two cost twice the
  // multiplications, but no more reading.
  bool two_terms = false;
};

struct LayerWeights {
  const float* input_norm = nullptr;           // [hidden_size]
  const float* post_attention_norm = nullptr;  // [hidden_size]
  const float* query_norm = nullptr;           // [head_dim], or null
  const float* key_norm = nullptr;             // [head_dim], or null
  Linear query, key, value, output;
  Linear gate, up, down;
};

struct ModelWeights {
  PackedMatrix embedding;  // [vocab_size x hidden_size]
  std::vector<LayerWeights> layers;
  const float* final_norm = nullptr;
  Linear head;
};

// Finds and checks every tensor that `config` demands. Throws PackedFileError. The views live as long as
// `file`.
//
// Two-term inputs go where a small model's outputs are touched most for the work they cost: into query, key
// and value of every layer, every matrix of the last two layers, and the head. In models at least
// kWideHiddenSize wide the rounding of a sum's many terms averages out, and every input has one term.
// (Embedded model, 400 tokens of prose: mean KL divergence from fp32 activations 0.0028 with one term
// everywhere, 0.0007 so, for a fifth more work.)
inline constexpr int32_t kWideHiddenSize = 1024;
ModelWeights find_model_weights(const PackedFile& file, const ModelConfig& config);

}  // namespace redoubt
