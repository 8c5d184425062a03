// The tensors of a Llama-family model by the place where they are used: views into one mapped file.
#pragma once

#include <string>
#include <vector>

#include "model/config.h"
#include "weights/packed_file.h"

namespace redoubt {

// y = x W^T + bias; bias is null where the family has none.
struct Linear {
  PackedMatrix weight;
  const float* bias = nullptr;
  // Whether quantized inputs have two int8 terms (contract/linear.h) rather than one.
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
// `file`. For the threads of one node, which may read their own tiles only (weights/node_slices.h).
//
// In a small model these take inputs of two terms, because there the rounding of inputs changes the output
// most for the work that a second term costs: query, key and value of every layer; the first two layers,
// where activations of thousands of times the usual size arise (Sun et al. 2024, "Massive Activations in
// Large Language Models"); the last layer, of which a prompt computes one row; and the head. In models at
// least kWideHiddenSize wide the rounding errors of a sum's many terms average out, and every input has one
// term. Measured in docs/tuning.md.
inline constexpr int32_t kWideHiddenSize = 1024;
ModelWeights find_model_weights(const PackedFile& file, const ModelConfig& config, int node);

}  // namespace redoubt
