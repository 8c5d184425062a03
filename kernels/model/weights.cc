// Hugging Face's tensor names, and which of them a configuration demands.
#include "model/weights.h"

namespace redoubt {
namespace {

class Finder {
 public:
  Finder(const PackedFile& file, int node, std::string prefix)
      : file_(file), node_(node), prefix_(std::move(prefix)) {}

  Linear linear(const std::string& name, int32_t rows, int32_t cols, bool biased) const {
    Linear linear;
    linear.weight = file_.matrix(prefix_ + name + ".weight", rows, cols, node_);
    if (biased) {
      linear.bias = file_.vector(prefix_ + name + ".bias", rows);
    } else if (file_.has(prefix_ + name + ".bias")) {
      throw PackedFileError(file_.path(), prefix_ + name + ".bias",
                            "is there, but config.json says there is none");
    }
    return linear;
  }
  const float* norm(const std::string& name, int32_t length) const {
    return file_.vector(prefix_ + name + ".weight", length);
  }
  // Matrices that share an input share its quantized form.
  void check_same_input(const std::string& name, const Linear& linear, const Linear& first) const {
    if (linear.weight.is_integer() != first.weight.is_integer() ||
        linear.weight.group != first.weight.group) {
      throw PackedFileError(file_.path(), prefix_ + name + ".weight",
                            "its group differs from that of the matrices that share its input");
    }
  }

 private:
  const PackedFile& file_;
  int node_;
  std::string prefix_;
};

LayerWeights find_layer(const PackedFile& file, const ModelConfig& config, int node, int layer) {
  const Finder find(file, node, "model.layers." + std::to_string(layer) + ".");
  const int32_t hidden = config.hidden_size, query = config.query_dim(), kv = config.kv_dim();
  const int32_t inner = config.intermediate_size;
  LayerWeights weights;
  weights.input_norm = find.norm("input_layernorm", hidden);
  weights.post_attention_norm = find.norm("post_attention_layernorm", hidden);
  if (config.qk_norm) {
    weights.query_norm = find.norm("self_attn.q_norm", config.head_dim);
    weights.key_norm = find.norm("self_attn.k_norm", config.head_dim);
  }
  weights.query = find.linear("self_attn.q_proj", query, hidden, config.qkv_bias);
  weights.key = find.linear("self_attn.k_proj", kv, hidden, config.qkv_bias);
  weights.value = find.linear("self_attn.v_proj", kv, hidden, config.qkv_bias);
  weights.output = find.linear("self_attn.o_proj", hidden, query, config.output_bias);
  weights.gate = find.linear("mlp.gate_proj", inner, hidden, config.mlp_bias);
  weights.up = find.linear("mlp.up_proj", inner, hidden, config.mlp_bias);
  weights.down = find.linear("mlp.down_proj", hidden, inner, config.mlp_bias);
  find.check_same_input("self_attn.k_proj", weights.key, weights.query);
  find.check_same_input("self_attn.v_proj", weights.value, weights.query);
  find.check_same_input("mlp.up_proj", weights.up, weights.gate);
  return weights;
}

void choose_two_terms(ModelWeights& weights) {
  const size_t layers = weights.layers.size();
  for (size_t i = 0; i < layers; ++i) {
    LayerWeights& layer = weights.layers[i];
    layer.query.two_terms = layer.key.two_terms = layer.value.two_terms = true;
    const bool outer = i < 2 || i + 1 == layers;
    for (Linear* linear : {&layer.output, &layer.gate, &layer.up, &layer.down}) {
      linear->two_terms = outer;
    }
  }
  weights.head.two_terms = true;
}

}  // namespace

ModelWeights find_model_weights(const PackedFile& file, const ModelConfig& config, int node) {
  const Finder find(file, node, "");
  ModelWeights weights;
  weights.embedding = find.linear("model.embed_tokens", config.vocab_size, config.hidden_size, false).weight;
  for (int layer = 0; layer < config.layers; ++layer)
    weights.layers.push_back(find_layer(file, config, node, layer));
  weights.final_norm = find.norm("model.norm", config.hidden_size);
  if (config.tied_head) {
    weights.head.weight = weights.embedding;
  } else {
    weights.head = find.linear("lm_head", config.vocab_size, config.hidden_size, false);
  }
  if (config.hidden_size < kWideHiddenSize) choose_two_terms(weights);
  return weights;
}

}  // namespace redoubt
