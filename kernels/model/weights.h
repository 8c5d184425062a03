// The tensors of a model by the place where they are used: views into one packed file.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "model/config.h"
#include "weights/packed_file.h"

namespace redoubt {

// y = x W^T + bias; bias is null where the model has none.
struct Linear {
  PackedMatrix weight;
  const float* bias = nullptr;
  // Whether quantized inputs have two int8 terms (contract/linear.h) rather than one.
  bool two_terms = false;
};

// Of the model's NormType. Without a weight there is no norm.
struct Norm {
  const float* weight = nullptr;
  const float* bias = nullptr;
};

struct MlpWeights {
  Linear gate;  // without data where there is no gate
  Linear up, down;
  Activation activation = Activation::kSilu;

  bool gated() const { return gate.weight.data != nullptr; }
  int32_t inner() const { return up.weight.rows; }
};

struct ExpertsWeights {
  Linear router;                           // [count x hidden_size], of floats
  const float* correction_bias = nullptr;  // [count], or null
  std::vector<MlpWeights> experts;         // of one shape, type and group
  std::optional<MlpWeights> shared;
  const float* shared_gate = nullptr;  // [hidden_size], or null
};

struct LayerWeights {
  Norm attention_norm, attention_output_norm, mlp_norm, mlp_output_norm;  // [hidden_size]
  const float* query_norm = nullptr;  // [head_dim], or of all heads (QkNorm::kRow), or null
  const float* key_norm = nullptr;
  Linear query, key, value, output;
  const float* sinks = nullptr;  // [heads], or null
  std::optional<MlpWeights> mlp;
  std::optional<ExpertsWeights> experts;  // if there is no mlp
};

struct ModelWeights {
  PackedMatrix embedding;  // [vocab_size x hidden_size]
  Norm embedding_norm;
  std::vector<LayerWeights> layers;
  Norm final_norm;
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
