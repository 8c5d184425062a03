// Reads a description. Absent keys have the defaults of quant/families/description.py; an unknown key is
// refused, as it might change what is to be computed.
#include "model/config.h"

#include <algorithm>
#include <initializer_list>
#include <set>
#include <stdexcept>
#include <utility>

#include "contract/attention.h"
#include "contract/convolution.h"
#include "contract/delta.h"
#include "contract/packed_matrix.h"
#include "weights/json.h"
#include "weights/packed_file.h"

namespace redoubt {
namespace {

constexpr int64_t kMaxSize = 1 << 24;
constexpr int32_t kMostLayers = 1024;
constexpr int32_t kMostHeads = 1024;
constexpr int32_t kMostExperts = 4096;
constexpr int32_t kMostExpertsPerToken = 1024;  // so that the pairs of a step's rows and experts fit int32_t
constexpr size_t kMostKinds = 64;
constexpr int32_t kMostLayerInput = kMaxHeadDim;
constexpr int32_t kMostTokenTypes = 64;

template <typename Enum>
using Names = std::initializer_list<std::pair<const char*, Enum>>;

// Typed access to one object of the description; errors name the file and the key.
class Fields {
 public:
  // json: an object.
  Fields(const std::string& file, std::string prefix, const Json& json)
      : file_(file), prefix_(std::move(prefix)), json_(json) {}

  [[noreturn]] void fail(const std::string& key, const std::string& reason) const {
    throw PackedFileError(file_, "decoder." + prefix_ + key + ": " + reason);
  }
  // Refuses the keys that nobody asked for. Called last.
  void check_all_known() const {
    for (const auto& [key, value] : *json_.object()) {
      if (known_.find(key) == known_.end()) fail(key, "not known: this version of Redoubt is too old for it");
    }
  }
  int32_t integer(const std::string& key, int32_t least, int64_t most) const {
    return integer_of(key, require(key), least, most);
  }
  int32_t integer(const std::string& key, int32_t least, int64_t most, int32_t otherwise) const {
    const Json* value = find(key);
    return value == nullptr ? otherwise : integer_of(key, *value, least, most);
  }
  double number(const std::string& key, double least, double most, double otherwise) const {
    const Json* value = find(key);
    return value == nullptr ? otherwise : number_of(key, *value, least, most);
  }
  bool flag(const std::string& key, bool otherwise = false) const {
    const Json* value = find(key);
    if (value == nullptr) return otherwise;
    if (value->boolean() == nullptr) fail(key, "not true or false");
    return *value->boolean();
  }
  std::string text(const std::string& key, const std::string& otherwise) const {
    const Json* value = find(key);
    if (value == nullptr) return otherwise;
    if (value->string() == nullptr) fail(key, "not a string");
    return *value->string();
  }
  template <typename Enum>
  Enum choice(const std::string& key, Enum otherwise, Names<Enum> names) const {
    const Json* value = find(key);
    if (value == nullptr) return otherwise;
    std::string known;
    for (const auto& [name, meant] : names) {
      if (value->string() != nullptr && *value->string() == name) return meant;
      known += (known.empty() ? "" : ", ") + std::string(name);
    }
    fail(key, "not one of " + known);
  }
  std::vector<double> numbers(const std::string& key, size_t count, double least, double most) const {
    const Json& value = require(key);
    if (value.array() == nullptr || value.array()->size() != count) {
      fail(key, "not a list of " + std::to_string(count) + " numbers");
    }
    std::vector<double> result;
    for (const Json& item : *value.array()) result.push_back(number_of(key, item, least, most));
    return result;
  }
  std::optional<Fields> object(const std::string& key) const {
    const Json* value = find(key);
    if (value == nullptr) return {};
    if (value->object() == nullptr) fail(key, "not an object");
    return Fields(file_, prefix_ + key + ".", *value);
  }
  std::vector<Fields> objects(const std::string& key, size_t most) const {
    std::vector<Fields> result;
    const Json* value = find(key);
    if (value == nullptr) return result;
    if (value->array() == nullptr || value->array()->size() > most) {
      fail(key, "not a list of at most " + std::to_string(most) + " objects");
    }
    for (const Json& item : *value->array()) {
      const std::string place = key + "[" + std::to_string(result.size()) + "]";
      if (item.object() == nullptr) fail(place, "not an object");
      result.emplace_back(file_, prefix_ + place + ".", item);
    }
    return result;
  }
  std::vector<int32_t> integers(const std::string& key, size_t most_items, int64_t most,
                                size_t fewest_items = 1) const {
    const Json& value = require(key);
    if (value.array() == nullptr || value.array()->size() < fewest_items ||
        value.array()->size() > most_items) {
      const std::string fewest = fewest_items == most_items ? "" : std::to_string(fewest_items) + " to ";
      fail(key, "not a list of " + fewest + std::to_string(most_items) + " integers");
    }
    std::vector<int32_t> result;
    for (const Json& item : *value.array()) result.push_back(integer_of(key, item, 0, most));
    return result;
  }
  bool has_null(const std::string& key) const {
    const Json* value = json_.find(key);
    return value != nullptr && value->is_null();
  }
  // A key that is absent or null counts as not there.
  const Json* find(const std::string& key) const {
    known_.insert(key);
    const Json* value = json_.find(key);
    return value == nullptr || value->is_null() ? nullptr : value;
  }

 private:
  const Json& require(const std::string& key) const {
    const Json* value = find(key);
    if (value == nullptr) fail(key, "missing");
    return *value;
  }
  int32_t integer_of(const std::string& key, const Json& value, int32_t least, int64_t most) const {
    const int64_t* integer = value.integer();
    if (integer == nullptr || *integer < least || *integer > most) {
      fail(key, "not a whole number in " + std::to_string(least) + " .. " + std::to_string(most));
    }
    return int32_t(*integer);
  }
  double number_of(const std::string& key, const Json& value, double least, double most) const {
    double number = 0;
    if (!value.number(number) || !(number >= least && number <= most)) fail(key, "not a number in range");
    return number;
  }

  const std::string& file_;
  std::string prefix_;
  const Json& json_;
  mutable std::set<std::string, std::less<>> known_;
};

constexpr double kLeastNumber = 1e-12, kMostNumber = 1e12;

RopeConfig read_rope(const Fields& fields) {
  RopeConfig rope;
  rope.rotary_dim = fields.integer("rotary_dim", 2, kMaxHeadDim);
  if (rope.rotary_dim % 2 != 0) fields.fail("rotary_dim", "odd");
  const size_t pairs = size_t(rope.rotary_dim / 2);
  rope.frequencies = fields.numbers("frequencies", pairs, 0, kMostNumber);
  rope.attention_factor = fields.number("attention_factor", kLeastNumber, kMostNumber, 1.0);
  if (const auto dynamic = fields.object("dynamic")) {
    if (rope.rotary_dim < 4) fields.fail("dynamic", "needs a rotary_dim of 4 or more");
    rope.dynamic = DynamicRope{
        .theta = dynamic->number("theta", 1.0, 1e15, 10000.0),
        .factor = dynamic->number("factor", kLeastNumber, kMostNumber, 1.0),
        .trained_positions = dynamic->integer("trained_positions", 1, kMaxSize),
    };
    dynamic->check_all_known();
  }
  if (fields.find("long_frequencies") != nullptr) {
    rope.long_frequencies = fields.numbers("long_frequencies", pairs, 0, kMostNumber);
    rope.short_positions = fields.integer("short_positions", 1, kMaxSize);
    rope.long_attention_factor = fields.number("long_attention_factor", kLeastNumber, kMostNumber, 1.0);
  }
  fields.check_all_known();
  return rope;
}

LatentConfig read_latent(const Fields& fields, const HeadShape& shape) {
  const LatentConfig latent{
      .kv_rank = fields.integer("kv_rank", 1, kMaxHeadDim),
      .nope_dim = fields.integer("nope_dim", 1, kMaxHeadDim),
      .rope_dim = fields.integer("rope_dim", 2, kMaxHeadDim),
      .value_dim = fields.integer("value_dim", 1, kMaxHeadDim),
      .query_rank = fields.integer("query_rank", 0, kMaxSize, 0),
      .norm_epsilon = float(fields.number("norm_epsilon", kLeastNumber, 1, 1e-6)),
  };
  if (latent.kv_rank % kTileOutputs != 0) fields.fail("kv_rank", "not a multiple of 32");
  if (latent.value_dim % kTileOutputs != 0) fields.fail("value_dim", "not a multiple of 32");
  if (shape.kv_heads != 1 || shape.head_dim != latent.rope_dim + latent.kv_rank) {
    fields.fail("kv_rank", "there is not one kv_head of head_dim rope_dim + kv_rank");
  }
  fields.check_all_known();
  return latent;
}

void check_latent(const Fields& fields, const AttentionConfig& attention, const ModelConfig& config) {
  const int32_t rope_dim = attention.latent->rope_dim;
  if (attention.rope >= 0 && config.ropes[size_t(attention.rope)].rotary_dim > rope_dim) {
    fields.fail("rope", "has more rotary numbers than latent.rope_dim");
  }
  if (attention.qk_norm != QkNorm::kNone) fields.fail("qk_norm", "does not go with latent attention");
  if (attention.output_gate) fields.fail("output_gate", "does not go with latent attention");
  if (attention.value_norm || attention.value_is_key)
    fields.fail("value_norm", "does not go with latent attention");
}

HeadShape read_shape(const Fields& fields, const ModelConfig& config) {
  const HeadShape shape{.heads = config.heads,
                        .kv_heads = fields.integer("kv_heads", 1, kMostHeads, config.kv_heads),
                        .head_dim = fields.integer("head_dim", 2, kMaxHeadDim, config.head_dim)};
  if (shape.heads % shape.kv_heads != 0) fields.fail("kv_heads", "heads is not a multiple of it");
  if (shape.head_dim % 2 != 0) fields.fail("head_dim", "odd");
  return shape;
}

AttentionConfig read_attention(const Fields& fields, const ModelConfig& config) {
  AttentionConfig attention;
  attention.shape = read_shape(fields, config);
  attention.scale = float(fields.number("scale", kLeastNumber, kMostNumber, 0));
  if (attention.scale == 0) fields.fail("scale", "missing");
  attention.rope = config.ropes.empty() ? -1 : 0;
  // null says that there is none, and the first one is the default.
  if (fields.has_null("rope")) attention.rope = -1;
  if (config.ropes.empty() && fields.find("rope") != nullptr) fields.fail("rope", "there are no ropes");
  attention.rope = fields.integer("rope", 0, int64_t(config.ropes.size()) - 1, attention.rope);
  if (attention.rope >= 0 && config.ropes[size_t(attention.rope)].rotary_dim > attention.shape.head_dim) {
    fields.fail("rope", "its rotary_dim is more than the head_dim");
  }
  attention.window = fields.integer("window", 0, kMaxSize, 0);
  attention.causal = fields.flag("causal", true);
  attention.softcap = float(fields.number("softcap", 0, kMostNumber, 0));
  attention.sinks = fields.flag("sinks");
  if (fields.find("slopes") != nullptr) {
    for (double slope : fields.numbers("slopes", size_t(config.heads), 0, kMostNumber)) {
      attention.slopes.push_back(float(slope));
    }
  }
  attention.qk_norm = fields.choice<QkNorm>(
      "qk_norm", QkNorm::kNone, {{"none", QkNorm::kNone}, {"head", QkNorm::kHead}, {"row", QkNorm::kRow}});
  attention.temperature_scale = float(fields.number("temperature_scale", 0, kMostNumber, 0));
  attention.temperature_positions = fields.integer("temperature_positions", 0, kMaxSize, 0);
  if (attention.temperature_scale != 0 && attention.temperature_positions == 0) {
    fields.fail("temperature_positions", "missing");
  }
  attention.qkv_bias = fields.flag("qkv_bias");
  attention.output_bias = fields.flag("output_bias");
  attention.keys_of = fields.integer("keys_of", 0, kMostLayers, -1);
  attention.value_norm = fields.flag("value_norm");
  attention.value_is_key = fields.flag("value_is_key");
  attention.output_gate = fields.flag("output_gate");
  if (attention.output_gate && attention.value_is_key) {
    fields.fail("output_gate", "does not go with value_is_key");
  }
  if (const auto latent = fields.object("latent")) {
    attention.latent = read_latent(*latent, attention.shape);
    check_latent(fields, attention, config);
  }
  fields.check_all_known();
  return attention;
}

DeltaConfig read_delta(const Fields& fields) {
  const DeltaConfig delta{.key_heads = fields.integer("key_heads", 1, kMostHeads),
                          .value_heads = fields.integer("value_heads", 1, kMostHeads),
                          .key_dim = fields.integer("key_dim", 1, kMostDeltaDim),
                          .value_dim = fields.integer("value_dim", 1, kMostDeltaDim),
                          .taps = fields.integer("taps", 1, kMostTaps, 4)};
  if (delta.value_heads % delta.key_heads != 0) {
    fields.fail("value_heads", "not a multiple of key_heads");
  }
  fields.check_all_known();
  return delta;
}

ConvConfig read_conv(const Fields& fields) {
  const ConvConfig conv{.taps = fields.integer("taps", 1, kMostTaps, 3), .bias = fields.flag("bias")};
  fields.check_all_known();
  return conv;
}

Activation read_activation(const Fields& fields) {
  try {
    return activation_from_name(fields.text("activation", "silu"));
  } catch (const std::invalid_argument& error) {
    fields.fail("activation", error.what());
  }
}

MlpConfig read_mlp(const Fields& fields) {
  const MlpConfig mlp{.inner = fields.integer("inner", 1, kMaxSize),
                      .activation = read_activation(fields),
                      .gated = fields.flag("gated", true),
                      .bias = fields.flag("bias")};
  if (!mlp.gated && mlp.activation == Activation::kSwigluOai) fields.fail("gated", "swiglu_oai needs a gate");
  fields.check_all_known();
  return mlp;
}

ExpertsConfig read_experts(const Fields& fields) {
  ExpertsConfig experts;
  experts.count = fields.integer("count", 1, kMostExperts);
  experts.per_token = fields.integer("per_token", 1, std::min(experts.count, kMostExpertsPerToken));
  experts.mlp = {.inner = fields.integer("inner", 1, kMaxSize),
                 .activation = read_activation(fields),
                 .gated = true,
                 .bias = fields.flag("bias")};
  if (experts.mlp.inner % kTileOutputs != 0) fields.fail("inner", "not a multiple of 32");
  experts.router_bias = fields.flag("router_bias");
  experts.scoring = fields.choice<Scoring>("scoring", Scoring::kSoftmax,
                                           {{"softmax", Scoring::kSoftmax},
                                            {"sigmoid", Scoring::kSigmoid},
                                            {"softmax_of_chosen", Scoring::kSoftmaxOfChosen}});
  experts.correction_bias = fields.flag("correction_bias");
  experts.groups = fields.integer("groups", 1, experts.count, 1);
  experts.chosen_groups = fields.integer("chosen_groups", 1, experts.groups, 1);
  if (experts.count % experts.groups != 0) fields.fail("groups", "count is not a multiple of it");
  if (int64_t(experts.count) / experts.groups * experts.chosen_groups < experts.per_token) {
    fields.fail("chosen_groups", "they have fewer experts than per_token");
  }
  experts.renormalize = fields.flag("renormalize");
  experts.scale = float(fields.number("scale", kLeastNumber, kMostNumber, 1.0));
  const int32_t shared = fields.integer("shared_inner", 0, kMaxSize, 0);
  if (shared > 0) experts.shared = MlpConfig{shared, experts.mlp.activation, true, experts.mlp.bias};
  experts.shared_gate = fields.flag("shared_gate");
  if (experts.shared_gate && !experts.shared) fields.fail("shared_gate", "there is no shared_inner");
  if (experts.correction_bias && experts.scoring == Scoring::kSoftmaxOfChosen) {
    fields.fail("correction_bias", "does not go with scoring softmax_of_chosen");
  }
  experts.router_norm = fields.flag("router_norm");
  if (experts.router_norm && experts.shared_gate) fields.fail("router_norm", "does not go with shared_gate");
  experts.expert_scale = fields.flag("expert_scale");
  fields.check_all_known();
  return experts;
}

LayerConfig read_kind(const Fields& fields, const ModelConfig& config) {
  LayerConfig layer;
  const auto attention = fields.object("attention");
  const auto delta = fields.object("delta");
  const auto conv = fields.object("conv");
  if (int(attention.has_value()) + int(delta.has_value()) + int(conv.has_value()) != 1) {
    fields.fail("attention", attention ? "a layer has either attention or a delta or a conv" : "missing");
  }
  if (attention) layer.attention = read_attention(*attention, config);
  if (delta) layer.delta = read_delta(*delta);
  if (delta && config.delta() != nullptr && *layer.delta != *config.delta()) {
    fields.fail("delta", "its sizes differ from those of another kind");
  }
  if (conv) layer.conv = read_conv(*conv);
  if (conv && config.conv() != nullptr && layer.conv->taps != config.conv()->taps) {
    fields.fail("conv", "its taps differ from those of another kind");
  }
  if (const auto mlp = fields.object("mlp")) layer.mlp = read_mlp(*mlp);
  if (const auto experts = fields.object("experts")) layer.experts = read_experts(*experts);
  if (!layer.mlp && !layer.experts) fields.fail("mlp", "a layer has an MLP, experts or both");
  layer.attention_norm = fields.flag("attention_norm", true);
  layer.attention_output_norm = fields.flag("attention_output_norm");
  layer.mlp_norm = fields.flag("mlp_norm", true);
  layer.mlp_output_norm = fields.flag("mlp_output_norm");
  layer.norms_sum = fields.flag("norms_sum");
  layer.parallel = fields.flag("parallel");
  layer.scaled = fields.flag("scaled");
  if (layer.has_both() && (layer.parallel || !layer.mlp_output_norm)) {
    fields.fail("experts", "beside an MLP they need an mlp_output_norm, and not parallel");
  }
  const bool has_output_norms = layer.attention_output_norm && layer.mlp_output_norm;
  if (layer.norms_sum && (!has_output_norms || layer.parallel || layer.scaled || layer.has_both())) {
    fields.fail("norms_sum", "needs both output norms, and an MLP or experts, neither parallel nor scaled");
  }
  if (layer.scaled && !layer.mlp_output_norm) fields.fail("scaled", "needs an mlp_output_norm");
  fields.check_all_known();
  return layer;
}

void read_heads(const Fields& root, ModelConfig& config) {
  config.heads = root.integer("heads", 1, kMostHeads);
  config.kv_heads = root.integer("kv_heads", 1, kMostHeads);
  config.head_dim = root.integer("head_dim", 2, kMaxHeadDim);
  if (config.heads % config.kv_heads != 0) root.fail("kv_heads", "heads is not a multiple of it");
  if (config.head_dim % 2 != 0) root.fail("head_dim", "odd");
}

// The memory of a step is made for all kinds, and what no layer is of has no tensors that bound it.
void check_kinds_are_used(const Fields& root, const ModelConfig& config) {
  std::vector<bool> used(config.kinds.size());
  for (const int32_t kind : config.kind_of_layer) used[size_t(kind)] = true;
  const size_t unused = size_t(std::find(used.begin(), used.end(), false) - used.begin());
  if (unused < used.size()) root.fail("kinds[" + std::to_string(unused) + "]", "no layer is of this kind");
}

// The other layer must keep what this one reads, in the same shape.
void check_shared_keys(const Fields& root, const ModelConfig& config) {
  for (int32_t number = 0; number < config.layers; ++number) {
    const AttentionConfig& own = config.layer(number).attention;
    if (own.keys_of < 0) continue;
    const std::string place = "kinds[" + std::to_string(config.kind_of_layer[size_t(number)]) + "]";
    if (own.keys_of >= number) root.fail(place + ".attention.keys_of", "is not a layer before its own");
    const LayerConfig& other = config.layer(own.keys_of);
    if (other.delta || other.attention.keys_of >= 0) {
      root.fail(place + ".attention.keys_of", "that layer stores no keys");
    }
    if (other.attention.shape != own.shape || other.attention.window != own.window) {
      root.fail(place + ".attention.keys_of", "that layer has other heads or another window");
    }
  }
}

void read_layer_inputs(const Fields& root, ModelConfig& config) {
  const auto inputs = root.object("layer_inputs");
  if (!inputs) return;
  config.layer_inputs = {
      .size = inputs->integer("size", 1, kMostLayerInput),
      .embedding_scale = float(inputs->number("embedding_scale", kLeastNumber, kMostNumber, 1.0)),
      .activation = read_activation(*inputs)};
  inputs->check_all_known();
}

// What is made of the last layer's output is for who asks for it: app/encoder computes that.
void read_encoder(const Fields& root, ModelConfig& config) {
  config.encoder = root.object("encoder").has_value();
  const auto causal = [](const LayerConfig& kind) { return kind.keeps_state() || kind.attention.causal; };
  if (!config.encoder && !std::all_of(config.kinds.begin(), config.kinds.end(), causal)) {
    root.fail("encoder", "missing, and attention is not causal");
  }
  if (config.encoder && config.keeps_states()) root.fail("encoder", "does not go with delta or conv");
  for (const LayerConfig& kind : config.kinds) {
    if (config.encoder && kind.attention.keys_of >= 0) root.fail("encoder", "does not go with keys_of");
  }
}

void read_predictor(const Fields& root, ModelConfig& config) {
  const auto predictor = root.object("predictor");
  if (!predictor) return;
  config.predictor = {.kind = predictor->integer("kind", 0, int64_t(config.kinds.size()) - 1),
                      .head_tokens = predictor->integer("head_tokens", 0, config.vocab_size, 0),
                      .eagle = predictor->flag("eagle"),
                      .states = {},
                      .input_norm = predictor->flag("input_norm"),
                      .normalized_residual = predictor->flag("normalized_residual"),
                      .normalized_output = predictor->flag("normalized_output")};
  if (predictor->find("states") != nullptr) {
    config.predictor->states = predictor->integers("states", kEagleStates, kMostLayers, kEagleStates);
  }
  predictor->check_all_known();
  const LayerConfig& kind = config.kinds[size_t(config.predictor->kind)];
  if (config.is_eagle() && (config.layers > 0 || kind.attention_norm || kind.attention.latent)) {
    root.fail("predictor.eagle",
              "a head has no layers but its own, which has neither an attention_norm nor a latent");
  }
  const AttentionConfig& attention = kind.attention;
  if (kind.keeps_state() || attention.keys_of >= 0 || attention.window > 0 || !attention.slopes.empty()) {
    root.fail("predictor.kind", "its layer has no attention to all earlier tokens with keys of its own");
  }
  config.kind_of_layer.push_back(config.predictor->kind);
}

void read_layers(const Fields& root, ModelConfig& config) {
  for (const Fields& rope : root.objects("ropes", kMostKinds)) {
    config.ropes.push_back(read_rope(rope));
  }
  for (const Fields& kind : root.objects("kinds", kMostKinds)) {
    config.kinds.push_back(read_kind(kind, config));
  }
  if (config.kinds.empty()) root.fail("kinds", "missing");
  const auto predictor = root.object("predictor");
  const bool is_head = predictor && predictor->flag("eagle");  // it has no layers of a model
  config.kind_of_layer =
      root.integers("layers", kMostLayers, int64_t(config.kinds.size()) - 1, is_head ? 0 : 1);
  config.layers = int32_t(config.kind_of_layer.size());
  read_predictor(root, config);
  check_kinds_are_used(root, config);
  check_shared_keys(root, config);
  read_layer_inputs(root, config);
  for (const LayerConfig& kind : config.kinds) {
    if (kind.norms_sum && config.layer_inputs) root.fail("layer_inputs", "does not go with norms_sum");
  }
}

}  // namespace

ModelConfig read_model_config(const std::string& path, std::string_view description) {
  Json json;
  try {
    json = Json::parse(description);
  } catch (const JsonError& error) {
    throw PackedFileError(path, std::string("decoder: ") + error.what());
  }
  if (json.object() == nullptr) throw PackedFileError(path, "decoder: not a JSON object");
  const Fields root(path, "", json);
  ModelConfig config;
  config.vocab_size = root.integer("vocab_size", 1, kMaxSize);
  config.hidden_size = root.integer("hidden_size", 1, kMaxSize);
  config.max_positions = root.integer("max_positions", 1, kMaxSize);
  read_heads(root, config);
  read_layers(root, config);
  config.norm =
      root.choice<NormType>("norm", NormType::kRms, {{"rms", NormType::kRms}, {"layer", NormType::kLayer}});
  config.norm_epsilon = float(root.number("norm_epsilon", kLeastNumber, 1, 1e-6));
  config.norm_bias = root.flag("norm_bias");
  if (config.norm_bias && config.norm == NormType::kRms) root.fail("norm_bias", "RMS norms have none");
  config.final_norm = root.flag("final_norm", true);
  config.embedding_scale = float(root.number("embedding_scale", kLeastNumber, kMostNumber, 1.0));
  config.embedding_norm = root.flag("embedding_norm");
  config.embedding_size = root.integer("embedding_size", 0, config.hidden_size, 0);
  if (config.embedding_size > 0 && (config.embedding_norm || config.layer_inputs)) {
    root.fail("embedding_size", "does not go with embedding_norm or layer_inputs");
  }
  config.learned_positions = root.flag("learned_positions");
  if (config.learned_positions && config.layer_inputs) {
    root.fail("learned_positions", "does not go with layer_inputs");
  }
  config.token_types = root.integer("token_types", 0, kMostTokenTypes, 0);
  const bool plain = config.embedding_size == 0 && !config.layer_inputs;
  if (config.token_types > (plain ? 1 : 0) && !config.learned_positions) {
    root.fail("token_types",
              "needs learned_positions, but for one type where embeddings are the first layer's input");
  }
  read_encoder(root, config);
  if (config.predictor && (config.encoder || !config.has_plain_embeddings() || !config.final_norm ||
                           config.norm != NormType::kRms)) {
    root.fail("predictor", "needs RMS norms, a final one too, and embeddings that layers get as they are");
  }
  config.tied_head = root.flag("tied_head");
  config.head_bias = root.flag("head_bias");
  config.logit_scale = float(root.number("logit_scale", kLeastNumber, kMostNumber, 1.0));
  config.logit_softcap = float(root.number("logit_softcap", 0, kMostNumber, 0));
  root.check_all_known();
  return config;
}

void ModelConfig::add_head(const ModelConfig& head) {
  const auto fail = [](const std::string& reason) { throw std::invalid_argument("predicts: " + reason); };
  const auto check_same = [&](const char* name, int32_t of_head, int32_t of_model) {
    if (of_head == of_model) return;
    fail("the head is for a model with a " + std::string(name) + " of " + std::to_string(of_head) +
         ", and this one has " + std::to_string(of_model));
  };
  if (!head.is_head()) fail("that model is no EAGLE-3 head");
  check_same("hidden size", head.hidden_size, hidden_size);
  check_same("vocabulary", head.vocab_size, vocab_size);
  if (encoder || !has_plain_embeddings()) {
    fail("this model's first layer gets more than the tokens' embeddings, which no head knows");
  }
  leave_predictor_out();
  predictor = head.predictor;
  if (predictor->states.empty()) predictor->states = {2, layers / 2, layers - 3};
  for (const int32_t state : predictor->states) {
    if (state < 0 || state > layers) {
      fail("the head reads hidden states behind layers that this model of " + std::to_string(layers) +
           " does not have");
    }
  }
  predictor->kind = int32_t(kinds.size());
  kinds.push_back(head.kinds.front());
  if (kinds.back().attention.rope >= 0) kinds.back().attention.rope += int32_t(ropes.size());
  ropes.insert(ropes.end(), head.ropes.begin(), head.ropes.end());
  kind_of_layer.push_back(predictor->kind);
}

int32_t ModelConfig::last_storing_layer() const {
  int32_t last = layers - 1;
  while (last > 0 && layer(last).attention.keys_of >= 0) --last;
  return last;
}

int32_t ModelConfig::widest_query_dim() const {
  int32_t widest = 0;
  for (const LayerConfig& kind : kinds) widest = std::max(widest, kind.attention.shape.query_dim());
  return widest;
}

int32_t ModelConfig::widest_qkv_dim() const {
  int32_t widest = 0;
  for (const LayerConfig& kind : kinds) widest = std::max(widest, kind.attention.shape.qkv_dim());
  return widest;
}

const DeltaConfig* ModelConfig::delta() const {
  for (const LayerConfig& kind : kinds) {
    if (kind.delta) return &*kind.delta;
  }
  return nullptr;
}

const ConvConfig* ModelConfig::conv() const {
  for (const LayerConfig& kind : kinds) {
    if (kind.conv) return &*kind.conv;
  }
  return nullptr;
}

int32_t ModelConfig::widest_inner() const {
  int32_t widest = 0;
  for (const LayerConfig& kind : kinds) {
    if (kind.mlp) widest = std::max(widest, kind.mlp->inner);
    if (kind.experts && kind.experts->shared) widest = std::max(widest, kind.experts->shared->inner);
  }
  return widest;
}

}  // namespace redoubt
