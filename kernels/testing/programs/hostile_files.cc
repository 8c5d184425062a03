// A program to run under AddressSanitizer: packed models whose text is damaged are read, thousands of them,
// and so is a sound one with each of its allocations made to fail once. Ends with status 1 where a reader
// throws what its contract does not name.
//
//   redoubt_hostile_files MODEL_FOLDER EMPTY_FOLDER ROUNDS
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <fstream>
#include <iterator>
#include <new>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "machine/thread_pool.h"
#include "model/config.h"
#include "model/rope_angles.h"
#include "model/weights.h"
#include "weights/model_files.h"
#include "weights/node_slices.h"
#include "weights/packed_file.h"

namespace {

constexpr int64_t kNever = INT64_MAX;
// So many allocations succeed, and the next one fails.
std::atomic<int64_t> allocations_left{kNever};

}  // namespace

void* operator new(size_t bytes) {
  const bool fails = allocations_left.load() != kNever && allocations_left.fetch_sub(1) == 0;
  void* const memory = fails ? nullptr : std::malloc(bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace redoubt {
namespace {

using Random = std::mt19937_64;

size_t below(Random& random, size_t count) { return size_t(random() % count); }

std::string read_whole(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void write_whole(const std::string& path, const std::string& content) {
  std::ofstream(path, std::ios::binary) << content;
}

// What JSON is made of, and what its numbers can be at worst.
constexpr const char* kTokens[] = {"{",
                                   "}",
                                   "[",
                                   "]",
                                   ",",
                                   ":",
                                   "\"",
                                   "\\",
                                   "\\u",
                                   "\\ud800",
                                   "\\ud83d\\ude00",
                                   "-",
                                   ".",
                                   "e",
                                   "e-",
                                   "0",
                                   "1",
                                   "01",
                                   "-1",
                                   "31",
                                   "32",
                                   "64",
                                   "128",
                                   "65535",
                                   "16777216",
                                   "16777217",
                                   "2147483647",
                                   "2147483648",
                                   "4294967296",
                                   "9223372036854775807",
                                   "9223372036854775808",
                                   "18446744073709551615",
                                   "1e308",
                                   "1e-308",
                                   "1e999",
                                   "0.5",
                                   "-0.0",
                                   "1e15",
                                   "true",
                                   "false",
                                   "null",
                                   "[]",
                                   "{}",
                                   "[0]",
                                   "[0,0]",
                                   "\"\"",
                                   "\"layer\"",
                                   "\"row\"",
                                   "\"sigmoid\"",
                                   "\"swiglu_oai\"",
                                   "\"fp32\"",
                                   "\"bf16\"",
                                   "\"int8\"",
                                   "\"lut4\"",
                                   "\"U8\"",
                                   "\"F32\"",
                                   "\x01",
                                   "\xff",
                                   "\xc3\xa9"};

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// Damages one place: a token over a number or over any bytes, a piece doubled, or one cut out.
void damage_once(std::string& text, Random& random) {
  if (text.empty()) return;
  const std::string token = kTokens[below(random, std::size(kTokens))];
  size_t at = below(random, text.size());
  size_t bytes = std::min(below(random, 12), text.size() - at);
  switch (below(random, 6)) {
    case 0:
    case 1:
    case 2: {
      at = std::min(text.find_first_of("0123456789", at), text.size());
      const size_t begin = at;
      while (at < text.size() && is_digit(text[at])) ++at;
      text.replace(begin, at - begin, token);
      break;
    }
    case 3:
      text.replace(at, bytes, token);
      break;
    case 4:
      text.insert(at, text.substr(below(random, text.size()), below(random, 80)));
      break;
    default:
      text.erase(at, bytes);
  }
}

std::string damaged(std::string text, Random& random) {
  for (size_t i = 1 + below(random, 3); i != 0; --i) damage_once(text, random);
  return text;
}

// A file of the same tensors' bytes; its header is padded as it was, so that most tensors stay aligned.
std::string with_header(std::string header, const std::string& data, Random& random) {
  header.resize((header.size() + 8 + 63) / 64 * 64 - 8, ' ');
  uint64_t length = header.size();
  if (below(random, 32) == 0) length += below(random, 200) - 100;
  std::string file(sizeof length, '\0');
  std::memcpy(file.data(), &length, sizeof length);
  file += header + data;
  if (below(random, 32) == 0) file.resize(below(random, file.size()));
  return file;
}

// Copied weights lie in memory whose end is guarded; a system may have none.
WeightMemory copied_if_possible() {
  try {
    return choose_weight_memory(WeightMemory::kHugePages, {});
  } catch (const std::invalid_argument&) {
    return WeightMemory::kMapped;
  }
}

constexpr const char* kWeights = "model.safetensors";

// The weights of a folder, without the file system.
class FilesInMemory : public ModelFiles {
 public:
  explicit FilesInMemory(const std::string& folder) : weights_(read_whole(folder + "/" + kWeights)) {}
  std::string path(const std::string& name) const override { return "in memory/" + name; }
  size_t bytes(const std::string& name) const override { return content(name).size(); }
  void read(const std::string& name, size_t begin, uint8_t* to, size_t bytes) const override {
    if (begin > content(name).size() || bytes > content(name).size() - begin) {
      throw std::out_of_range("read past the end");
    }
    std::memcpy(to, weights_.data() + begin, bytes);
  }

 private:
  const std::string& content(const std::string& name) const {
    if (name != kWeights) throw std::out_of_range(name);
    return weights_;
  }

  std::string weights_;
};

class Reader {
 public:
  explicit Reader(std::string folder) : folder_(std::move(folder)), pool_(2, {}), nodes_(2, {}) {}

  // Whether the folder has a model; each byte that its weights claim is then read.
  bool read(WeightMemory memory) {
    const std::string path = folder_ + "/" + kWeights;
    try {
      const ModelConfig config = read_model_config(path, read_description(path));
      touch(PackedFile(path, memory, 0, pool_, nodes_, false), config);
    } catch (const PackedFileError&) {
      return false;
    }
    return true;
  }
  // The same of these files instead of the folder's.
  bool read(const ModelFiles& files) {
    try {
      const ModelConfig config = read_model_config(files.path(kWeights), read_description(files, kWeights));
      touch(PackedFile(files, kWeights, WeightMemory::kAuto, 0, pool_, nodes_, false), config);
    } catch (const PackedFileError&) {
      return false;
    }
    return true;
  }

  uint64_t sum() const { return sum_; }

 private:
  void touch(const void* begin, size_t bytes) {
    for (size_t i = 0; i < bytes; ++i) sum_ += static_cast<const uint8_t*>(begin)[i];
  }
  void touch(const PackedMatrix& matrix) { touch(matrix.data, matrix.bytes()); }
  void touch(const Linear& linear) {
    if (linear.weight.data == nullptr) return;  // a gate that an MLP has not
    touch(linear.weight);
    touch_floats(linear.bias, linear.weight.rows);
  }
  // null: there are none.
  void touch_floats(const float* values, int64_t count) {
    if (values != nullptr) touch(values, size_t(count) * sizeof(float));
  }
  void touch(const Norm& norm, int32_t hidden) {
    touch_floats(norm.weight, hidden);
    touch_floats(norm.bias, hidden);
  }
  void touch(const MlpWeights& mlp) {
    for (const Linear* linear : {&mlp.gate, &mlp.up, &mlp.down}) touch(*linear);
  }
  void touch(const ExpertsWeights& experts, int32_t hidden) {
    touch(experts.router);
    touch_floats(experts.correction_bias, int64_t(experts.experts.size()));
    touch_floats(experts.expert_scale, int64_t(experts.experts.size()));
    touch(experts.router_norm, hidden);
    for (const MlpWeights& expert : experts.experts) touch(expert);
    if (experts.shared) touch(*experts.shared);
    touch_floats(experts.shared_gate, hidden);
  }
  void touch(const DeltaWeights& delta, const DeltaConfig& config) {
    for (const Linear* linear : {&delta.qkv, &delta.beta, &delta.decay}) touch(*linear);
    touch_floats(delta.convolution.data(), int64_t(config.channels()) * config.taps);
    touch_floats(delta.decays, config.value_heads);
    touch_floats(delta.decay_bias, config.value_heads);
    touch_floats(delta.norm, config.value_dim);
  }
  void touch(const ConvWeights& conv, const ConvConfig& config, int32_t hidden) {
    touch(conv.input);
    touch_floats(conv.taps, int64_t(config.taps) * hidden);
    touch_floats(conv.bias, hidden);
  }
  void touch(const LatentWeights& latent, const LatentConfig& config) {
    for (const Linear* linear : {&latent.query_down, &latent.query, &latent.key_value}) touch(*linear);
    touch_floats(latent.query_norm.weight, config.query_rank);
    touch_floats(latent.key_value_norm, config.kv_rank);
    for (const Linear& linear : latent.key_up) touch(linear);
    for (const Linear& linear : latent.value_up) touch(linear);
  }
  void touch(const LayerWeights& layer, const LayerConfig& kind, const ModelConfig& config) {
    for (const Norm* norm :
         {&layer.attention_norm, &layer.attention_output_norm, &layer.mlp_norm, &layer.mlp_output_norm,
          &layer.experts_norm, &layer.dense_output_norm, &layer.experts_output_norm}) {
      touch(*norm, config.hidden_size);
    }
    for (const Linear* linear : {&layer.query, &layer.key, &layer.value, &layer.gate, &layer.output,
                                 &layer.input_gate, &layer.input_output}) {
      if (linear->weight.data != nullptr) touch(*linear);
    }
    if (layer.delta) touch(*layer.delta, *kind.delta);
    if (layer.latent) touch(*layer.latent, *kind.attention.latent);
    if (layer.conv) touch(*layer.conv, *kind.conv, config.hidden_size);
    const HeadShape& shape = kind.attention.shape;
    const bool row = kind.attention.qk_norm == QkNorm::kRow;
    touch_floats(layer.query_norm, row ? shape.query_dim() : shape.head_dim);
    touch_floats(layer.key_norm, row ? shape.kv_dim() : shape.head_dim);
    touch_floats(layer.sinks, config.heads);
    if (layer.mlp) touch(*layer.mlp);
    if (layer.experts) touch(*layer.experts, config.hidden_size);
    touch(layer.input_norm, config.hidden_size);
  }
  void touch(const PackedFile& file, const ModelConfig& config) {
    for (const RopeConfig& rope : config.ropes) {
      std::vector<float> angles(size_t(rope.rotary_dim));
      for (const int32_t context : {64, 1 << 24}) {
        const RopeAngles rope_angles(rope, context);
        for (const int32_t position : {0, 100, INT32_MAX}) rope_angles.fill(position, angles.data());
      }
    }
    const ModelWeights weights = find_model_weights(file, config, 0);
    touch(weights.embedding);
    touch(weights.embedding_norm, config.hidden_size);
    touch(weights.final_norm, config.hidden_size);
    touch(weights.head);
    if (config.layer_inputs) touch(weights.input_embedding);
    touch(weights.input_projection);
    touch_floats(weights.input_norm, config.layer_inputs ? config.layer_inputs->size : 0);
    if (weights.predictor) {
      const PredictorWeights& predictor = *weights.predictor;
      for (const Norm* norm : {&predictor.embedding_norm, &predictor.hidden_norm, &predictor.output_norm}) {
        touch(*norm, config.hidden_size);
      }
      touch(predictor.input);
      touch(predictor.head);
    }
    for (size_t i = 0; i < weights.layers.size(); ++i) {
      touch(weights.layers[i], config.layer(int(i)), config);
    }
  }

  std::string folder_;
  ThreadPool pool_;
  ThreadNodes nodes_;
  uint64_t sum_ = 0;
};

// Where the header has the text of the description: JSON in a string of JSON, which damage to the header
// seldom hits in a way that leaves the rest sound.
struct Description {
  size_t begin, end;
};
Description find_description(const std::string& header) {
  const std::string key = "\"decoder\":\"";
  const size_t at = header.find(key);
  if (at == std::string::npos) throw std::runtime_error("the model's header has no decoder");
  const size_t begin = at + key.size();
  size_t end = begin;
  while (header[end] != '"') end += header[end] == '\\' ? 2 : 1;
  return {begin, end};
}

// The header with its description damaged, as a string of JSON again.
std::string with_damaged_description(const std::string& header, Random& random) {
  const Description place = find_description(header);
  std::string text, quoted;
  for (size_t i = place.begin; i < place.end; ++i) {
    if (header[i] == '\\') ++i;
    text += header[i];
  }
  for (const char c : damaged(text, random)) {
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += c;
  }
  return header.substr(0, place.begin) + quoted + header.substr(place.end);
}

void read_damaged(const std::string& file, const std::string& folder, int rounds) {
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, file.data(), sizeof header_bytes);
  const std::string header = file.substr(8, header_bytes), data = file.substr(8 + header_bytes);
  Reader reader(folder);
  const WeightMemory copied = copied_if_possible();
  int taken = 0;
  for (int round = 0; round < rounds; ++round) {
    Random random{uint64_t(round)};
    const std::string changed =
        round % 2 == 0 ? with_damaged_description(header, random) : damaged(header, random);
    write_whole(folder + "/" + kWeights, with_header(changed, data, random));
    try {
      const bool is_taken = reader.read(round % 3 == 0 ? copied : WeightMemory::kMapped);
      if (reader.read(FilesInMemory(folder)) != is_taken) throw std::runtime_error("from memory it differs");
      taken += is_taken;
    } catch (const std::exception& error) {
      throw std::runtime_error("round " + std::to_string(round) + ": " + error.what());
    }
  }
  std::printf("%d of %d damaged models are refused, ", rounds - taken, rounds);
}

void read_with_failing_allocations(const std::string& folder) {
  const WeightMemory copied = copied_if_possible();
  int64_t failed = 0;
  for (bool fails = true; fails; failed += fails) {
    try {
      allocations_left = failed;
      Reader(folder).read(copied);
      fails = false;
    } catch (const std::bad_alloc&) {
    }
    allocations_left = kNever;
  }
  std::printf("%lld allocations failed\n", static_cast<long long>(failed));
}

}  // namespace
}  // namespace redoubt

int main(int count, char** arguments) {
  if (count != 4) {
    std::fprintf(stderr, "usage: redoubt_hostile_files MODEL_FOLDER EMPTY_FOLDER ROUNDS\n");
    return 2;
  }
  const std::string model = arguments[1], folder = arguments[2];
  try {
    redoubt::read_damaged(redoubt::read_whole(model + "/" + redoubt::kWeights), folder,
                          std::atoi(arguments[3]));
    redoubt::read_with_failing_allocations(model);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "redoubt_hostile_files: %s\n", error.what());
    return 1;
  }
  return 0;
}
