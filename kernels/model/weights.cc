// Tensors' names, and which of them a description demands.
#include "model/weights.h"

#include <cmath>

namespace redoubt {
namespace {

constexpr const char* kPredictor = "model.predictor.";

class Finder {
 public:
  Finder(const PackedFile& file, const ModelConfig& config, int node, std::string prefix)
      : file_(file), config_(config), node_(node), prefix_(std::move(prefix)) {}

  Linear linear(const std::string& name, int32_t rows, int32_t cols, bool biased) const {
    Linear linear;
    linear.weight = file_.matrix(prefix_ + name + ".weight", rows, cols, node_);
    linear.bias = bias(name, rows, biased);
    return linear;
  }
  // Matrices of several experts, and their biases, which the file has as one.
  std::vector<Linear> stack(const std::string& name, int32_t count, int32_t rows, int32_t cols,
                            bool biased) const {
    // Before the biases: its check bounds the number of rows.
    const std::vector<PackedMatrix> weights =
        file_.stack(prefix_ + name + ".weight", count, rows, cols, node_);
    const float* biases = bias(name, count * rows, biased);
    std::vector<Linear> linears;
    for (const PackedMatrix& weight : weights) {
      const float* own = biases == nullptr ? nullptr : biases + linears.size() * size_t(rows);
      linears.push_back({.weight = weight, .bias = own});
    }
    return linears;
  }
  Norm norm(const std::string& name, bool there) const {
    if (!there) return {};
    return {.weight = vector(name + ".weight", config_.hidden_size),
            .bias = bias(name, config_.hidden_size, config_.norm_bias)};
  }
  const float* vector(const std::string& name, int32_t length) const {
    return file_.vector(prefix_ + name, length);
  }
  const float* bias(const std::string& name, int32_t length, bool biased) const {
    if (biased) return file_.vector(prefix_ + name + ".bias", length);
    if (!file_.has(prefix_ + name + ".bias")) return nullptr;
    throw PackedFileError(file_.path(), prefix_ + name + ".bias",
                          "is there, but the description says there is none");
  }
  // Matrices that share an input share its quantized form.
  void check_same_input(const std::string& name, const Linear& linear, const Linear& first) const {
    if (linear.weight.is_integer() != first.weight.is_integer() ||
        linear.weight.group != first.weight.group) {
      throw PackedFileError(file_.path(), prefix_ + name + ".weight",
                            "its group differs from that of the matrices that share its input");
    }
  }
  void check_floats(const std::string& name, const Linear& linear) const {
    if (!linear.weight.is_integer()) return;
    throw PackedFileError(file_.path(), prefix_ + name + ".weight",
                          "is of integers, not of fp16, bf16 or fp32");
  }

 private:
  const PackedFile& file_;
  const ModelConfig& config_;
  int node_;
  std::string prefix_;
};

MlpWeights find_mlp(const Finder& find, const MlpConfig& mlp, int32_t hidden, const std::string& name) {
  MlpWeights weights;
  weights.activation = mlp.activation;
  weights.up = find.linear(name + ".up_proj", mlp.inner, hidden, mlp.bias);
  weights.down = find.linear(name + ".down_proj", hidden, mlp.inner, mlp.bias);
  if (mlp.gated) {
    weights.gate = find.linear(name + ".gate_proj", mlp.inner, hidden, mlp.bias);
    find.check_same_input(name + ".up_proj", weights.up, weights.gate);
  }
  return weights;
}

ExpertsWeights find_experts(const Finder& find, const ExpertsConfig& config, int32_t hidden) {
  ExpertsWeights weights;
  weights.router = find.linear("mlp.router", config.count, hidden, config.router_bias);
  find.check_floats("mlp.router", weights.router);
  if (config.correction_bias) {
    weights.correction_bias = find.vector("mlp.router.correction_bias", config.count);
  }
  weights.router_norm = find.norm("mlp.router.norm", config.router_norm);
  if (config.expert_scale) weights.expert_scale = find.vector("mlp.router.expert_scale", config.count);
  const int32_t inner = config.mlp.inner;
  const auto stack = [&](const char* name, int32_t rows, int32_t cols) {
    return find.stack(std::string("mlp.experts.") + name, config.count, rows, cols, config.mlp.bias);
  };
  const std::vector<Linear> gates = stack("gate_proj", inner, hidden), ups = stack("up_proj", inner, hidden),
                            downs = stack("down_proj", hidden, inner);
  find.check_same_input("mlp.experts.up_proj", ups.front(), gates.front());
  for (size_t i = 0; i < gates.size(); ++i) {
    weights.experts.push_back(
        {.gate = gates[i], .up = ups[i], .down = downs[i], .activation = config.mlp.activation});
  }
  if (config.shared) {
    weights.shared = find_mlp(find, *config.shared, hidden, "mlp.shared");
    find.check_same_input("mlp.shared.gate_proj", weights.shared->gate, gates.front());
    if (config.shared_gate) weights.shared_gate = find.vector("mlp.shared_gate.weight", hidden);
  }
  return weights;
}

LatentWeights find_latent(const Finder& find, const LatentConfig& config, int32_t hidden, int32_t heads,
                          bool biased) {
  LatentWeights weights;
  if (config.query_rank > 0) {
    weights.query_down = find.linear("self_attn.q_a_proj", config.query_rank, hidden, biased);
    weights.query_norm = {.weight = find.vector("self_attn.q_a_norm.weight", config.query_rank),
                          .size = config.query_rank,
                          .epsilon = config.norm_epsilon};
  }
  weights.query =
      find.linear(config.query_rank > 0 ? "self_attn.q_b_proj" : "self_attn.q_proj",
                  heads * config.query_dim(), config.query_rank > 0 ? config.query_rank : hidden, false);
  weights.key_value = find.linear("self_attn.kv_a_proj", config.rope_dim + config.kv_rank, hidden, biased);
  weights.key_value_norm = find.vector("self_attn.kv_a_norm.weight", config.kv_rank);
  find.check_same_input("self_attn.kv_a_proj", weights.key_value, weights.first());
  weights.key_up = find.stack("self_attn.key_up_proj", heads, config.kv_rank, config.nope_dim, false);
  weights.value_up = find.stack("self_attn.value_up_proj", heads, config.value_dim, config.kv_rank, false);
  return weights;
}

// inputs: columns of query, key and value.
void find_heads(const Finder& find, const AttentionConfig& attention, int32_t inputs, LayerWeights& weights) {
  const int32_t query = attention.shape.query_dim(), kv = attention.shape.kv_dim();
  const bool stores = attention.keys_of < 0;
  if (attention.qk_norm != QkNorm::kNone) {
    const bool row = attention.qk_norm == QkNorm::kRow;
    weights.query_norm = find.vector("self_attn.q_norm.weight", row ? query : attention.shape.head_dim);
    if (stores) {
      weights.key_norm = find.vector("self_attn.k_norm.weight", row ? kv : attention.shape.head_dim);
    }
  }
  weights.query = find.linear("self_attn.q_proj", query, inputs, attention.qkv_bias);
  if (stores) {
    weights.key = find.linear("self_attn.k_proj", kv, inputs, attention.qkv_bias);
    find.check_same_input("self_attn.k_proj", weights.key, weights.query);
  }
  if (stores && !attention.value_is_key) {
    weights.value = find.linear("self_attn.v_proj", kv, inputs, attention.qkv_bias);
    find.check_same_input("self_attn.v_proj", weights.value, weights.query);
  }
  if (attention.output_gate) {
    weights.gate = find.linear("self_attn.gate_proj", query, inputs, false);
    find.check_same_input("self_attn.gate_proj", weights.gate, weights.query);
  }
}

void find_attention(const Finder& find, const AttentionConfig& attention, const ModelConfig& config,
                    int32_t inputs, LayerWeights& weights) {
  const int32_t hidden = config.hidden_size;
  int32_t outputs = attention.shape.query_dim();
  if (attention.latent) {
    outputs = config.heads * attention.latent->value_dim;
    weights.latent = find_latent(find, *attention.latent, hidden, config.heads, attention.qkv_bias);
  } else {
    find_heads(find, attention, inputs, weights);
  }
  weights.output = find.linear("self_attn.o_proj", hidden, outputs, attention.output_bias);
  if (attention.sinks) weights.sinks = find.vector("self_attn.sinks", config.heads);
}

void find_delta(const Finder& find, const DeltaConfig& config, int32_t hidden, LayerWeights& weights) {
  DeltaWeights delta;
  delta.qkv = find.linear("delta.qkv_proj", config.channels(), hidden, false);
  weights.gate = find.linear("delta.gate_proj", config.values(), hidden, false);
  find.check_same_input("delta.gate_proj", weights.gate, delta.qkv);
  delta.beta = find.linear("delta.beta_proj", config.value_heads, hidden, false);
  find.check_floats("delta.beta_proj", delta.beta);
  delta.decay = find.linear("delta.decay_proj", config.value_heads, hidden, false);
  find.check_floats("delta.decay_proj", delta.decay);
  const float* const convolution = find.vector("delta.conv.weight", config.channels() * config.taps);
  delta.convolution.resize(size_t(config.channels()) * size_t(config.taps));
  for (int32_t channel = 0; channel < config.channels(); ++channel) {
    for (int32_t tap = 0; tap < config.taps; ++tap) {
      delta.convolution[size_t(tap) * size_t(config.channels()) + size_t(channel)] =
          convolution[channel * config.taps + tap];
    }
  }
  delta.decays = find.vector("delta.decay", config.value_heads);
  delta.decay_bias = find.vector("delta.decay_bias", config.value_heads);
  delta.norm = find.vector("delta.norm.weight", config.value_dim);
  weights.output = find.linear("delta.output_proj", hidden, config.values(), false);
  weights.delta = std::move(delta);
}

void find_conv(const Finder& find, const ConvConfig& config, int32_t hidden, LayerWeights& weights) {
  ConvWeights conv;
  conv.input = find.linear("conv.input_proj", 3 * hidden, hidden, config.bias);
  conv.taps = find.vector("conv.taps", config.taps * hidden);
  conv.bias = find.bias("conv", hidden, config.bias);
  weights.output = find.linear("conv.output_proj", hidden, hidden, config.bias);
  weights.conv = conv;
}

LayerWeights find_layer(const PackedFile& file, const ModelConfig& config, int node, int number) {
  const Finder find(
      file, config, node,
      config.is_predictor(number) ? kPredictor : "model.layers." + std::to_string(number) + ".");
  const LayerConfig& layer = config.layer(number);
  const int32_t hidden = config.hidden_size;
  LayerWeights weights;
  weights.attention_norm = find.norm("input_layernorm", layer.attention_norm);
  weights.attention_output_norm = find.norm("attention_output_norm", layer.attention_output_norm);
  weights.mlp_norm = find.norm("post_attention_layernorm", layer.mlp_norm);
  weights.mlp_output_norm = find.norm("mlp_output_norm", layer.mlp_output_norm);
  weights.experts_norm = find.norm("experts_norm", layer.has_both());
  weights.dense_output_norm = find.norm("dense_output_norm", layer.has_both());
  weights.experts_output_norm = find.norm("experts_output_norm", layer.has_both());
  if (layer.scaled) weights.scale = *find.vector("scale", 1);
  if (layer.delta) {
    find_delta(find, *layer.delta, hidden, weights);
  } else if (layer.conv) {
    find_conv(find, *layer.conv, hidden, weights);
  } else {
    find_attention(find, layer.attention, config, config.attention_inputs(number), weights);
  }
  if (layer.mlp) weights.mlp = find_mlp(find, *layer.mlp, hidden, "mlp");
  if (layer.experts) weights.experts = find_experts(find, *layer.experts, hidden);
  if (config.layer_inputs) {
    const int32_t size = config.layer_inputs->size;
    weights.input_gate = find.linear("layer_input.gate_proj", size, hidden, false);
    weights.input_output = find.linear("layer_input.output_proj", hidden, size, false);
    weights.input_norm = find.norm("layer_input_norm", true);
  }
  return weights;
}

// The tokens are stored as floats, which have every number up to 2^24 exactly.
std::vector<int32_t> find_head_tokens(const PackedFile& file, const ModelConfig& config) {
  const std::string name = kPredictor + std::string("head_tokens");
  const float* const stored = file.vector(name, config.predictor->head_tokens);
  std::vector<int32_t> tokens;
  for (int32_t i = 0; i < config.predictor->head_tokens; ++i) {
    const int32_t least = tokens.empty() ? 0 : tokens.back() + 1;
    if (!(stored[i] >= float(least) && stored[i] < float(config.vocab_size)) ||
        stored[i] != std::floor(stored[i])) {
      throw PackedFileError(file.path(), name, "is not a rising list of tokens");
    }
    tokens.push_back(int32_t(stored[i]));
  }
  return tokens;
}

PredictorWeights find_predictor(const PackedFile& file, const ModelConfig& config, int node) {
  const Finder find(file, config, node, kPredictor);
  const int32_t hidden = config.hidden_size;
  PredictorWeights weights;
  weights.embedding_norm = find.norm("embedding_norm", true);
  weights.hidden_norm = find.norm("hidden_norm", true);
  weights.output_norm = find.norm("output_norm", true);
  const int32_t inputs = config.is_eagle() ? kEagleStates : 2;
  weights.input = find.linear("input_proj", hidden, inputs * hidden, false);
  if (config.predictor->input_norm) {
    weights.input_norm = {.weight = find.vector("input_norm.weight", inputs * hidden),
                          .size = inputs * hidden,
                          .epsilon = config.norm_epsilon};
  }
  if (config.predictor->head_tokens > 0) {
    weights.head = find.linear("head", config.predictor->head_tokens, hidden, false);
    weights.tokens = find_head_tokens(file, config);
  }
  return weights;
}

// All that leads to queries, keys and values.
void choose_two_terms(LatentWeights& weights) {
  weights.query_down.two_terms = weights.query.two_terms = weights.key_value.two_terms = true;
  for (Linear& key_up : weights.key_up) key_up.two_terms = true;
}

// layers: of the model, without the predictor's.
void choose_two_terms(ModelWeights& weights, size_t layers) {
  for (size_t i = 0; i < weights.layers.size(); ++i) {
    LayerWeights& layer = weights.layers[i];
    layer.query.two_terms = layer.key.two_terms = layer.value.two_terms = layer.gate.two_terms = true;
    if (layer.delta) layer.delta->qkv.two_terms = true;
    if (layer.conv) layer.conv->input.two_terms = true;
    if (layer.latent) choose_two_terms(*layer.latent);
    if (i >= 2 && i + 1 < layers) continue;
    layer.output.two_terms = true;
    if (layer.latent) {
      for (Linear& value_up : layer.latent->value_up) value_up.two_terms = true;
    }
    const auto choose = [](MlpWeights& mlp) {
      mlp.gate.two_terms = mlp.up.two_terms = mlp.down.two_terms = true;
    };
    if (layer.mlp) choose(*layer.mlp);
    if (!layer.experts) continue;
    for (MlpWeights& expert : layer.experts->experts) choose(expert);
    if (layer.experts->shared) choose(*layer.experts->shared);
  }
  weights.head.two_terms = weights.embedding_projection.two_terms = weights.head_projection.two_terms = true;
  if (weights.predictor) weights.predictor->input.two_terms = weights.predictor->head.two_terms = true;
}

}  // namespace

ModelWeights find_model_weights(const PackedFile& file, const ModelConfig& config, int node) {
  const Finder find(file, config, node, "");
  ModelWeights weights;
  const int32_t hidden = config.hidden_size, cols = config.embedding_cols();
  weights.embedding = find.linear("model.embed_tokens", config.vocab_size, cols, false).weight;
  if (config.learned_positions) {
    weights.positions = find.linear("model.embed_positions", config.max_positions, hidden, false).weight;
  }
  if (config.token_types > 0)
    weights.types = find.vector("model.embed_types.weight", config.token_types * hidden);
  if (config.embedding_size > 0) {
    weights.embedding_projection = find.linear("model.embed_proj", hidden, cols, false);
    weights.head_projection = find.linear("model.head_proj", cols, hidden, false);
  }
  weights.embedding_norm = find.norm("model.embed_norm", config.embedding_norm);
  const bool predicts = config.predictor && !config.is_eagle();
  for (int layer = 0; layer < config.layers + (predicts ? 1 : 0); ++layer)
    weights.layers.push_back(find_layer(file, config, node, layer));
  weights.final_norm = find.norm("model.norm", config.final_norm);
  if (config.tied_head) {
    weights.head.weight = weights.embedding;
    weights.head.bias = find.bias("lm_head", config.vocab_size, config.head_bias);
  } else {
    weights.head = find.linear("lm_head", config.vocab_size, cols, config.head_bias);
  }
  if (config.layer_inputs) {
    const int32_t size = config.layer_inputs->size, all = config.layers * size;
    weights.input_embedding = find.linear("model.embed_layer_inputs", config.vocab_size, all, false).weight;
    weights.input_projection = find.linear("model.layer_inputs_proj", all, config.hidden_size, false);
    weights.input_norm = find.vector("model.layer_inputs_norm.weight", size);
  }
  if (predicts) weights.predictor = find_predictor(file, config, node);
  if (config.hidden_size < kWideHiddenSize && !config.encoder) {
    choose_two_terms(weights, size_t(config.layers));
  }
  return weights;
}

void add_head_weights(const PackedFile& file, const ModelConfig& head, int node, ModelWeights& weights) {
  const size_t layers = weights.layers.size();
  weights.layers.push_back(find_layer(file, head, node, 0));
  weights.predictor = find_predictor(file, head, node);
  // The model's norms may be others.
  for (Norm* norm : {&weights.layers.back().mlp_norm, &weights.predictor->embedding_norm,
                     &weights.predictor->hidden_norm, &weights.predictor->output_norm}) {
    norm->size = head.hidden_size;
    norm->epsilon = head.norm_epsilon;
  }
  if (head.hidden_size < kWideHiddenSize) choose_two_terms(weights, layers);
}

}  // namespace redoubt
