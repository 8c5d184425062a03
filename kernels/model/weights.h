// The tensors of a model by their use: views into one packed file.
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

// A norm of the model's NormType. Without a weight there is no norm.
struct Norm {
  const float* weight = nullptr;
  const float* bias = nullptr;
  // Size and epsilon of an RMS norm that differs from the model's norms; 0: the same.
  int32_t size = 0;
  float epsilon = 0.0f;
};

struct MlpWeights {
  Linear gate;  // without data where there is no gate
  Linear up, down;
  Activation activation = Activation::kSilu;

  bool gated() const { return gate.weight.data != nullptr; }
  int32_t inner() const { return up.weight.rows; }
};

struct ExpertsWeights {
  Norm router_norm;                        // of the router's own input, or none
  Linear router;                           // [count x hidden_size], of floats
  const float* correction_bias = nullptr;  // [count], or null
  const float* expert_scale = nullptr;     // [count], or null
  std::vector<MlpWeights> experts;         // of one shape, type and group
  std::optional<MlpWeights> shared;
  const float* shared_gate = nullptr;  // [hidden_size], or null
};

// Weights of latent attention, with LatentConfig's sizes. The rotary part comes first in queries and latents.
struct LatentWeights {
  Linear query_down;                      // [query_rank x hidden_size]; without data where query_rank is 0
  Norm query_norm;                        // [query_rank], likewise
  Linear query;                           // [heads * query_dim x query_rank or hidden_size]
  Linear key_value;                       // [rope_dim + kv_rank x hidden_size]
  const float* key_value_norm = nullptr;  // [kv_rank]
  std::vector<Linear> key_up;             // by head, [kv_rank x nope_dim]
  std::vector<Linear> value_up;           // by head, [value_dim x kv_rank]

  // The matrix that takes the layer's input beside key_value.
  const Linear& first() const { return query_norm.weight != nullptr ? query_down : query; }
};

struct DeltaWeights {
  Linear qkv;                         // [channels x hidden_size]
  Linear beta, decay;                 // [value_heads x hidden_size], of floats
  std::vector<float> convolution;     // [taps][channels], the oldest first: a copy
  const float* decays = nullptr;      // [value_heads]
  const float* decay_bias = nullptr;  // [value_heads]
  const float* norm = nullptr;        // [value_dim]
};

struct ConvWeights {
  Linear input;                 // [3 * hidden_size x hidden_size]: gates before, gates behind, values
  const float* taps;            // [taps][hidden_size], the oldest token's first
  const float* bias = nullptr;  // [hidden_size], or null
};

struct LayerWeights {
  Norm attention_norm, attention_output_norm, mlp_norm, mlp_output_norm;  // [hidden_size]
  // For a layer with an MLP and experts: norms of the experts' input, and of the outputs of both.
  Norm experts_norm, dense_output_norm, experts_output_norm;
  const float* query_norm = nullptr;  // [head_dim], or of all heads (QkNorm::kRow), or null
  const float* key_norm = nullptr;
  Linear query;  // without data in latent attention and where there is no attention
  Linear key;    // likewise, and where another layer's keys are read
  Linear value;  // likewise, and where values are the keys
  Linear gate;   // of attention's or the delta's output; without data where there is none
  Linear output;
  std::optional<LatentWeights> latent;
  const float* sinks = nullptr;       // [heads], or null
  std::optional<DeltaWeights> delta;  // if there is no attention
  std::optional<ConvWeights> conv;    // likewise
  float scale = 1.0f;                 // of the residual stream at the layer's end
  std::optional<MlpWeights> mlp;
  std::optional<ExpertsWeights> experts;
  // For a model with layer inputs: [size x hidden_size], [hidden_size x size], [hidden_size].
  Linear input_gate, input_output;
  Norm input_norm;
};

// Of the predictor's layer, which is the last of ModelWeights::layers, all that other layers have not.
struct PredictorWeights {
  Norm embedding_norm, hidden_norm, output_norm;
  Norm input_norm;  // of what `input` takes, or none
  // [hidden_size x 2 * hidden_size]: the embedding first, then the hidden state. Of an EAGLE-3 head:
  // [hidden_size x kEagleStates * hidden_size].
  Linear input;
  Linear head;                  // of the tokens below; without data where it uses the model's
  std::vector<int32_t> tokens;  // rising
};

struct ModelWeights {
  PackedMatrix embedding;        // [vocab_size x embedding_cols()]
  PackedMatrix positions;        // [max_positions x hidden_size], where they are learned
  const float* types = nullptr;  // [token_types][hidden_size], or null
  Linear embedding_projection;   // [hidden_size x embedding_size], where there is one
  Linear head_projection;        // [embedding_size x hidden_size], likewise
  Norm embedding_norm;
  std::vector<LayerWeights> layers;  // the predictor's too
  Norm final_norm;
  Linear head;
  std::optional<PredictorWeights> predictor;
  // For layer inputs: [vocab_size x layers * size], [layers * size x hidden_size], [size].
  PackedMatrix input_embedding;
  Linear input_projection;
  const float* input_norm = nullptr;
};

// The head that the predictor uses.
inline const Linear& predictor_head(const ModelWeights& weights) {
  const Linear& own = weights.predictor->head;
  return own.weight.data == nullptr ? weights.head : own;
}

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
// Adds those of an EAGLE-3 head to a model's, from the head's file and by its own description, likewise.
void add_head_weights(const PackedFile& file, const ModelConfig& head, int node, ModelWeights& weights);

}  // namespace redoubt
