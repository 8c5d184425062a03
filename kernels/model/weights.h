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
// Two-term inputs go where a small model's outputs are touched most for the work they cost: into query, key
// and value of every layer; the first two layers, where activations of thousands of times the usual size
// arise (Sun et al. 2024, "Massive Activations in Large Language Models"); the last layer, of which a prompt
// computes one row; and the head. In models at least kWideHiddenSize wide the rounding of a sum's many terms
// averages out, and every input has one term. (Embedded model, 768 tokens of prose and chat, mean KL
// divergence from fp32 activations: 0.0028 with one term everywhere, 0.0021 with two into the head, 0.0015
// into the last layer too, 0.0008 into keys and values too, 0.0007 into the first two layers too. On 768
// tokens of WikiText-2 from there to all of this: 0.00078 to 0.00055; and the spread, over eight like
// roundings, of the difference of two nearly equal logits after a chat's prompt 0.09 to 0.04.)
inline constexpr int32_t kWideHiddenSize = 1024;
ModelWeights find_model_weights(const PackedFile& file, const ModelConfig& config, int node);

}  // namespace redoubt
