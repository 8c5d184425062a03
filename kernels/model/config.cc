// config.json as Hugging Face writes it: before transformers 5 with rope_theta and rope_scaling, since then
// with rope_parameters. What this engine would compute differently is refused by name, never ignored.
#include "model/config.h"

#include <cmath>
#include <initializer_list>
#include <optional>

#include "contract/attention.h"
#include "weights/json.h"
#include "weights/packed_file.h"

namespace redoubt {
namespace {

constexpr int64_t kMaxSize = 1 << 24;

// Typed access to one object of the file; errors name the file and the key.
class Fields {
 public:
  Fields(const std::string& file, std::string prefix, const Json& json)
      : file_(file), prefix_(std::move(prefix)), json_(json) {}

  [[noreturn]] void fail(const std::string& key, const std::string& reason) const {
    throw PackedFileError(file_, prefix_ + key + ": " + reason);
  }
  // A key that is absent or null counts as not there.
  const Json* find(const std::string& key) const {
    const Json* value = json_.find(key);
    return value == nullptr || value->is_null() ? nullptr : value;
  }
  int32_t size(const std::string& key, std::optional<int32_t> otherwise = {}) const {
    const Json* value = find(key);
    if (value == nullptr && otherwise) return *otherwise;
    if (value == nullptr) fail(key, "missing");
    const int64_t* integer = value->integer();
    if (integer == nullptr || *integer < 1 || *integer > kMaxSize) fail(key, "not a whole number in range");
    return int32_t(*integer);
  }
  double positive(const std::string& key, std::optional<double> otherwise = {}) const {
    const Json* value = find(key);
    if (value == nullptr && otherwise) return *otherwise;
    if (value == nullptr) fail(key, "missing");
    double number = 0;
    if (!value->number(number) || !(number > 0) || number > 1e15) fail(key, "not a positive number in range");
    return number;
  }
  bool flag(const std::string& key, bool otherwise) const {
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
  std::optional<Fields> object(const std::string& key) const {
    const Json* value = find(key);
    if (value == nullptr) return {};
    if (value->object() == nullptr) fail(key, "not an object");
    return Fields(file_, prefix_ + key + ".", *value);
  }

 private:
  const std::string& file_;
  std::string prefix_;
  const Json& json_;
};

RopeType read_rope_type(const Fields& scaling) {
  const std::string key = scaling.find("rope_type") != nullptr ? "rope_type" : "type";
  const std::string name = scaling.text(key, "default");
  if (name == "default") return RopeType::kDefault;
  if (name == "linear") return RopeType::kLinear;
  if (name == "dynamic") return RopeType::kDynamic;
  if (name == "llama3") return RopeType::kLlama3;
  if (name == "yarn") return RopeType::kYarn;
  scaling.fail(key, "'" + name + "' is not supported; default, linear, dynamic, llama3 and yarn are");
}

// YaRN's temperature as a factor of cosines and sines (equation 22 of the paper; mscale as DeepSeek defined
// it).
double yarn_attention_factor(const Fields& scaling, double factor) {
  const auto temperature = [&](double mscale) {
    return factor <= 1 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0;
  };
  if (scaling.find("attention_factor") != nullptr) return scaling.positive("attention_factor");
  double mscale = 0, mscale_all_dim = 0;
  if (const Json* value = scaling.find("mscale")) value->number(mscale);
  if (const Json* value = scaling.find("mscale_all_dim")) value->number(mscale_all_dim);
  if (mscale != 0 && mscale_all_dim != 0) return temperature(mscale) / temperature(mscale_all_dim);
  return temperature(1.0);
}

void read_scaling(const Fields& scaling, double max_positions, RopeConfig& rope) {
  rope.type = read_rope_type(scaling);
  if (rope.type == RopeType::kDefault) return;
  rope.original_max_positions = rope.type == RopeType::kDynamic
                                    ? max_positions
                                    : scaling.positive("original_max_position_embeddings", max_positions);
  if (rope.type == RopeType::kYarn && scaling.find("factor") == nullptr) {
    rope.factor = max_positions / rope.original_max_positions;
  } else {
    rope.factor = scaling.positive("factor");
  }
  if (rope.type == RopeType::kLlama3) {
    rope.low_freq_factor = scaling.positive("low_freq_factor");
    rope.high_freq_factor = scaling.positive("high_freq_factor");
    if (rope.high_freq_factor <= rope.low_freq_factor) {
      scaling.fail("high_freq_factor", "not greater than low_freq_factor");
    }
  } else if (rope.type == RopeType::kYarn) {
    rope.beta_fast = scaling.positive("beta_fast", 32.0);
    rope.beta_slow = scaling.positive("beta_slow", 1.0);
    rope.truncate = scaling.flag("truncate", true);
    rope.attention_factor = yarn_attention_factor(scaling, rope.factor);
  }
}

RopeConfig read_rope(const Fields& root, const ModelConfig& config) {
  RopeConfig rope;
  const std::optional<Fields> parameters = root.object("rope_parameters");
  const std::optional<Fields> scaling = parameters ? parameters : root.object("rope_scaling");
  rope.theta = root.positive("rope_theta", 10000.0);
  double rotary_factor = root.positive("partial_rotary_factor", 1.0);
  if (scaling) {
    rope.theta = scaling->positive("rope_theta", rope.theta);
    rotary_factor = scaling->positive("partial_rotary_factor", rotary_factor);
    read_scaling(*scaling, config.max_positions, rope);
  }
  if (rope.theta <= 1) root.fail("rope_theta", "not greater than 1");
  if (rotary_factor > 1) root.fail("partial_rotary_factor", "greater than 1");
  rope.rotary_dim = int32_t(config.head_dim * rotary_factor);
  if (rope.rotary_dim < 2 || rope.rotary_dim % 2 != 0) {
    root.fail("head_dim", "rotary dimension " + std::to_string(rope.rotary_dim) + " is not an even number");
  }
  if (rope.type == RopeType::kDynamic && rope.rotary_dim < 4)
    root.fail("head_dim", "too small for dynamic RoPE");
  return rope;
}

// Families differ in these: which projections have a bias, and whether queries and keys are normalized.
void read_family(const Fields& root, ModelConfig& config) {
  config.model_type = root.text("model_type", "");
  const bool attention_bias = root.flag("attention_bias", false);
  if (config.model_type == "llama") {
    config.qkv_bias = config.output_bias = attention_bias;
    config.mlp_bias = root.flag("mlp_bias", false);
  } else if (config.model_type == "qwen2") {
    config.qkv_bias = true;
  } else if (config.model_type == "qwen3") {
    config.qkv_bias = config.output_bias = attention_bias;
    config.qk_norm = true;
  } else if (config.model_type != "mistral") {
    root.fail("model_type",
              "'" + config.model_type + "' is not supported; llama, mistral, qwen2 and qwen3 are");
  }
  const std::string activation = root.text("hidden_act", "silu");
  if (activation != "silu" && activation != "swish")
    root.fail("hidden_act", "'" + activation + "' is not supported; silu is");
  if (root.find("quantization_config") != nullptr) {
    root.fail("quantization_config", "weights that another program has quantized are not supported");
  }
}

// Mistral windows every layer when sliding_window is set; Qwen only when use_sliding_window says so.
int32_t read_sliding_window(const Fields& root, const ModelConfig& config) {
  const bool windowed = config.model_type == "mistral" || root.flag("use_sliding_window", false);
  return windowed && root.find("sliding_window") != nullptr ? root.size("sliding_window") : 0;
}

// path: for messages.
ModelConfig parse_model_config(const std::string& path, const std::string& text) {
  Json json;
  try {
    json = Json::parse(text);
  } catch (const JsonError& error) {
    throw PackedFileError(path, error.what());
  }
  if (json.object() == nullptr) throw PackedFileError(path, "not a JSON object");
  const Fields root(path, "", json);

  ModelConfig config;
  read_family(root, config);
  config.hidden_size = root.size("hidden_size");
  config.intermediate_size = root.size("intermediate_size");
  config.layers = root.size("num_hidden_layers");
  config.heads = root.size("num_attention_heads");
  config.kv_heads = root.size("num_key_value_heads", config.heads);
  config.vocab_size = root.size("vocab_size");
  config.max_positions = root.size("max_position_embeddings");
  config.rms_norm_epsilon = float(root.positive("rms_norm_eps", 1e-6));
  config.tied_head = root.flag("tie_word_embeddings", false);
  config.sliding_window_tokens = read_sliding_window(root, config);

  if (config.layers > 1024) root.fail("num_hidden_layers", "more than 1024");
  if (config.heads > 1024 || config.heads % config.kv_heads != 0) {
    root.fail("num_key_value_heads", "num_attention_heads is not a multiple of it");
  }
  if (root.find("head_dim") == nullptr && config.hidden_size % config.heads != 0) {
    root.fail("num_attention_heads", "hidden_size is not a multiple of it, and there is no head_dim");
  }
  config.head_dim = root.size("head_dim", config.hidden_size / config.heads);
  if (config.head_dim > kMaxHeadDim || config.head_dim % 2 != 0)
    root.fail("head_dim", "odd, or more than 1024");
  config.rope = read_rope(root, config);
  return config;
}

}  // namespace

ModelConfig read_model_config(const std::string& path) {
  return parse_model_config(path, read_text_file(path));
}

ModelConfig read_model_config(const ModelFiles& files) {
  constexpr const char* kName = "config.json";
  return parse_model_config(files.path(kName), read_text_file(files, kName));
}

}  // namespace redoubt
