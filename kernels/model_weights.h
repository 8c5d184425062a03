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
ModelWeights find_model_weights(const PackedFile& file, const ModelConfig& config);

}  // namespace redoubt
