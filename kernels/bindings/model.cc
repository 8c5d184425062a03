// Python's view of Model: checks dtypes and shapes, releases the GIL, calls. Model itself checks the numbers.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>
#include <x86intrin.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "bindings/layer_tap.h"
#include "bindings/module.h"
#include "model/kv_page.h"
#include "sampling/prompt_reader.h"
#include "sampling/sampler.h"
#include "step/model.h"
#include "step/workspace.h"

namespace nb = nanobind;

namespace redoubt {
namespace {

using Array = nb::ndarray<nb::ro>;

ComputeType compute_type_from_name(const std::string& name) {
  if (name == "auto") return ComputeType::kAuto;
  if (name == "int8") return ComputeType::kInt8;
  if (name == "bf16") return ComputeType::kBf16;
  if (name == "fp32") return ComputeType::kFp32;
  throw std::invalid_argument("compute_type: '" + name + "' is not auto, int8, bf16 or fp32");
}

PromptComputeType prompt_compute_type_from_name(const std::string& name) {
  if (name == "same") return PromptComputeType::kSame;
  if (name == "bf16") return PromptComputeType::kBf16;
  if (name == "auto") return PromptComputeType::kAuto;
  throw std::invalid_argument("prompt_compute_type: '" + name + "' is not same, bf16 or auto");
}

// The files of a Python object, ModelFiles in __init__.pyi. Used without the interpreter lock, from any
// thread.
class PythonModelFiles : public ModelFiles {
 public:
  explicit PythonModelFiles(nb::object files) : files_(std::move(files)) {}

  std::string path(const std::string& name) const override {
    const nb::gil_scoped_acquire locked;
    return nb::cast<std::string>(nb::str(files_)) + "/" + name;
  }
  size_t bytes(const std::string& name) const override {
    const nb::gil_scoped_acquire locked;
    return nb::cast<size_t>(files_.attr("size")(name));
  }
  void read(const std::string& name, size_t begin, uint8_t* to, size_t bytes) const override {
    const nb::gil_scoped_acquire locked;
    const nb::object buffer =
        nb::steal(PyMemoryView_FromMemory(reinterpret_cast<char*>(to), Py_ssize_t(bytes), PyBUF_WRITE));
    if (!buffer.is_valid()) throw nb::python_error();
    files_.attr("read_into")(name, begin, buffer);
    buffer.attr("release")();  // nobody may write there later
  }

 private:
  nb::object files_;
};

// Null for the path of a folder.
std::unique_ptr<PythonModelFiles> files_of(const nb::object& folder) {
  return nb::isinstance<nb::str>(folder) ? nullptr : std::make_unique<PythonModelFiles>(folder);
}

// Whether the model's own layer predicts, or the folder of an EAGLE-3 head.
using Predicts = std::variant<bool, std::string>;
std::string head_of(const Predicts& predicts) {
  const std::string* const head = std::get_if<std::string>(&predicts);
  return head == nullptr ? "" : *head;
}

ModelConfig config_of(const nb::object& folder) {
  if (const auto files = files_of(folder)) return model_config_of(*files);
  return model_config_of(nb::cast<std::string>(folder));
}

// "auto" is the type of 16 bits that the attention of prompts is computed from.
KvType chosen_kv_type(const nb::object& folder, const std::string& name, const std::string& compute_type,
                      const std::string& prompt_compute_type) {
  const Bf16Uses bf16 = bf16_uses(compute_type_from_name(compute_type),
                                  prompt_compute_type_from_name(prompt_compute_type), default_tier());
  if (name != "auto") return kv_type_from_name(name);
  const ModelConfig config = config_of(folder);
  const bool in_bf16 = std::all_of(config.kinds.begin(), config.kinds.end(), [](const LayerConfig& kind) {
    return can_attend_in_bf16(KvType::kBf16, kind.attention.shape.head_dim);
  });
  return bf16.prompts && in_bf16 ? KvType::kBf16 : KvType::kInt16;
}

const int32_t* checked_int32(const char* name, const Array& array, size_t length) {
  const bool contiguous = array.ndim() == 1 && (array.shape(0) < 2 || array.stride(0) == 1);
  if (array.device_type() != nb::device::cpu::value || array.dtype() != nb::dtype<int32_t>() || !contiguous) {
    throw std::invalid_argument(std::string(name) + ": not a contiguous int32 array of one dimension");
  }
  if (array.shape(0) != length) {
    throw std::invalid_argument(std::string(name) + ": length " + std::to_string(array.shape(0)) + ", not " +
                                std::to_string(length));
  }
  return static_cast<const int32_t*>(array.data());
}

size_t length_of(const Array& array) { return array.ndim() == 0 ? 0 : array.shape(0); }

Batch checked_batch(const Array& token_ids, const Array& positions, const Array& slots,
                    const Array& query_lengths, const Array& context_lengths) {
  constexpr size_t kMost = 1 << 24;  // Model knows the real limits; this keeps lengths in their type
  const size_t tokens = std::min(length_of(token_ids), kMost), sequences = std::min(length_of(slots), kMost);
  Batch batch;
  batch.tokens = int32_t(tokens);
  batch.sequences = int32_t(sequences);
  batch.token_ids = checked_int32("token_ids", token_ids, tokens);
  batch.positions = checked_int32("positions", positions, tokens);
  batch.slots = checked_int32("slots", slots, sequences);
  batch.query_lengths = checked_int32("query_lengths", query_lengths, sequences);
  batch.context_lengths = checked_int32("context_lengths", context_lengths, sequences);
  return batch;
}

std::vector<Sampler*> checked_samplers(const nb::sequence& items, size_t sequences, int32_t vocab_size) {
  if (nb::len(items) != sequences) {
    throw std::invalid_argument("samplers: length " + std::to_string(nb::len(items)) + ", not " +
                                std::to_string(sequences));
  }
  std::vector<Sampler*> samplers;
  for (const nb::handle item : items) {
    Sampler* sampler = nullptr;
    if (!item.is_none() && !nb::try_cast(item, sampler)) {
      throw std::invalid_argument("samplers: neither a Sampler nor None");
    }
    if (sampler != nullptr && sampler->vocab_size() != vocab_size) {
      throw std::invalid_argument("samplers: one has a vocabulary of " +
                                  std::to_string(sampler->vocab_size()) + ", the model of " +
                                  std::to_string(vocab_size));
    }
    if (sampler != nullptr && std::find(samplers.begin(), samplers.end(), sampler) != samplers.end()) {
      throw std::invalid_argument("samplers: one is there twice");
    }
    samplers.push_back(sampler);
  }
  return samplers;
}

std::vector<PromptReader*> checked_readers(const nb::sequence& items, size_t sequences,
                                           const ModelConfig& config) {
  std::vector<PromptReader*> readers;
  if (nb::len(items) == 0) return readers;
  if (nb::len(items) != sequences) {
    throw std::invalid_argument("readers: length " + std::to_string(nb::len(items)) + ", not 0 or " +
                                std::to_string(sequences));
  }
  for (const nb::handle item : items) {
    PromptReader* reader = nullptr;
    if (!item.is_none() && !nb::try_cast(item, reader)) {
      throw std::invalid_argument("readers: neither a PromptReader nor None");
    }
    if (reader != nullptr &&
        reader->row_size() != (reader->reads_logits() ? config.vocab_size : config.hidden_size)) {
      throw std::invalid_argument("readers: one is for rows of " + std::to_string(reader->row_size()) +
                                  ", which are not the model's");
    }
    if (reader != nullptr && std::find(readers.begin(), readers.end(), reader) != readers.end()) {
      throw std::invalid_argument("readers: one is there twice");
    }
    readers.push_back(reader);
  }
  return readers;
}

// A new NumPy array, not initialized.
template <typename T>
nb::ndarray<nb::numpy, T> new_array(std::initializer_list<size_t> shape) {
  size_t count = 1;
  for (const size_t size : shape) count *= size;
  auto memory = std::make_unique<T[]>(count);
  T* data = memory.release();
  nb::capsule owner(data, [](void* pointer) noexcept { delete[] static_cast<T*>(pointer); });
  return nb::ndarray<nb::numpy, T>(data, shape, owner);
}

using HiddenStates = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

class BoundModel {
 public:
  BoundModel(const ModelOptions& options, const ModelFiles* files) : model_(options, files) {}

  Model& model() { return model_; }

  // None if the step was interrupted.
  std::optional<nb::ndarray<nb::numpy, int32_t>> step(
      const Array& token_ids, const Array& positions, const Array& slots, const Array& query_lengths,
      const Array& context_lengths, const nb::sequence& samplers, const nb::sequence& readers,
      const std::optional<Array>& draft_lengths, int32_t prompts, const std::optional<Array>& interrupt) {
    Batch batch = checked_batch(token_ids, positions, slots, query_lengths, context_lengths);
    batch.prompts = prompts;
    if (interrupt) batch.interrupt = checked_int32("interrupt", *interrupt, 1);
    size_t places = size_t(batch.sequences);
    std::vector<int32_t> drafts;  // a copy, because the places of results depend on it
    if (draft_lengths) {
      const int32_t* given = checked_int32("draft_lengths", *draft_lengths, places);
      drafts.assign(given, given + places);
      batch.draft_lengths = drafts.data();
      // Model rejects what is clamped.
      for (const int32_t count : drafts) places += size_t(std::clamp(count, 0, batch.tokens));
    }
    const std::vector<Sampler*> checked =
        checked_samplers(samplers, size_t(batch.sequences), model_.config().vocab_size);
    const std::vector<PromptReader*> reading =
        checked_readers(readers, size_t(batch.sequences), model_.config());
    auto sampled = new_array<int32_t>({places});
    try {
      run(batch, {.samplers = checked.data(),
                  .sampled = sampled.data(),
                  .readers = reading.empty() ? nullptr : reading.data()});
    } catch (const StepInterrupted&) {
      return std::nullopt;
    }
    return sampled;
  }

  // ([sequences][depth] tokens, their chances)
  nb::tuple draft(const Array& token_ids, const Array& positions, const Array& slots,
                  const Array& context_lengths, int32_t depth, const nb::sequence& samplers) {
    const std::vector<int32_t> ones(length_of(slots), 1);
    const nb::ndarray<nb::numpy, const int32_t> lengths(ones.data(), {ones.size()}, nb::none());
    const Batch batch = checked_batch(token_ids, positions, slots, Array(lengths), context_lengths);
    std::vector<Sampler*> drawing;
    if (nb::len(samplers) > 0) {
      drawing = checked_samplers(samplers, size_t(batch.sequences), model_.config().vocab_size);
    }
    const size_t most = size_t(std::clamp(depth, 1, kMostDrafts));  // Model rejects what is clamped
    auto tokens = new_array<int32_t>({size_t(batch.sequences), most});
    auto chances = new_array<float>({size_t(batch.sequences), most});
    {
      const nb::gil_scoped_release unlocked;
      const Exclusive exclusive(busy_);
      model_.draft(batch, depth, drawing.empty() ? nullptr : drawing.data(), tokens.data(), chances.data());
    }
    return nb::make_tuple(tokens, chances);
  }

  nb::ndarray<nb::numpy, float> logits(const Array& token_ids, const Array& positions, const Array& slots,
                                       const Array& query_lengths, const Array& context_lengths) {
    Batch batch = checked_batch(token_ids, positions, slots, query_lengths, context_lengths);
    batch.prompts = batch.sequences;
    auto out = new_array<float>({size_t(batch.tokens), size_t(model_.config().vocab_size)});
    run(batch, {.logits = out.data()});
    return out;
  }

  nb::ndarray<nb::numpy, float> hidden_states(const Array& token_ids, const Array& positions,
                                              const Array& slots, const Array& query_lengths,
                                              const Array& context_lengths) {
    Batch batch = checked_batch(token_ids, positions, slots, query_lengths, context_lengths);
    batch.prompts = batch.sequences;
    const ModelConfig& config = model_.config();
    auto out =
        new_array<float>({size_t(config.layers) + 2, size_t(batch.tokens), size_t(config.hidden_size)});
    run(batch, {.hidden_states = out.data()});
    return out;
  }

  // None unless the last layer's last rows are among them.
  std::optional<nb::ndarray<nb::numpy, float>> encode(const Array& token_ids, const Array& positions,
                                                      const Array& query_lengths, int32_t first_layer,
                                                      int32_t end_layer, int32_t first_row, int32_t end_row,
                                                      bool keys) {
    if (!model_.config().encoder) throw std::invalid_argument("this model is no encoder");
    const size_t sequences = std::min(length_of(query_lengths), size_t(model_.options().max_sequences) + 1);
    const std::vector<int32_t> zeros(sequences);
    std::vector<int32_t> numbers(sequences);
    std::iota(numbers.begin(), numbers.end(), 0);
    const nb::ndarray<nb::numpy, const int32_t> slots(numbers.data(), {sequences}, nb::none()),
        contexts(zeros.data(), {sequences}, nb::none());
    Batch batch = checked_batch(token_ids, positions, Array(slots), query_lengths, Array(contexts));
    batch.prompts = batch.sequences;
    batch.first_layer = first_layer;
    batch.end_layer = end_layer;
    if (end_row != 0) {
      batch.part = keys ? LayerPart::kKeys : LayerPart::kRest;
      batch.first_row = first_row;
      batch.end_row = end_row;
    }
    const bool is_last_layer = end_layer == 0 || end_layer == model_.config().layers;
    const bool is_last_part = end_row == 0 || (end_row == batch.tokens && !keys);
    if (!is_last_layer || !is_last_part) {
      run(batch, {});
      return std::nullopt;
    }
    auto out = new_array<float>({size_t(batch.tokens), size_t(model_.config().hidden_size)});
    run(batch, {.final_hidden = out.data()});
    return out;
  }

  nb::dict layer_activations(const HiddenStates& hidden, const Array& positions, const Array& slots,
                             const Array& query_lengths, const std::vector<std::string>& wanted) {
    const ModelConfig& config = model_.config();
    if (hidden.shape(1) != size_t(config.hidden_size)) {
      throw std::invalid_argument("hidden: rows of " + std::to_string(hidden.shape(1)) + ", not " +
                                  std::to_string(config.hidden_size));
    }
    const std::vector<int32_t> zeros(std::max(hidden.shape(0), length_of(slots)));
    const nb::ndarray<nb::numpy, const int32_t> tokens(zeros.data(), {hidden.shape(0)}, nb::none()),
        contexts(zeros.data(), {length_of(slots)}, nb::none());
    Batch batch = checked_batch(Array(tokens), positions, slots, query_lengths, Array(contexts));
    batch.hidden_states = hidden.data();
    batch.prompts = batch.sequences;
    const TappedArrays tapped(config, size_t(batch.tokens), wanted);
    run(batch, {.tap = &tapped.tap()});
    return tapped.arrays();
  }

  nb::ndarray<nb::numpy, int32_t> page_table() {
    const size_t sequences = size_t(model_.options().max_sequences),
                 pages = size_t(model_.pages_per_sequence());
    const size_t groups = size_t(model_.page_groups().count());
    if (!model_.options().page_groups && groups == 1) {
      return {model_.page_table(), {sequences, pages}, nb::find(*this)};
    }
    return {model_.page_table(), {groups, sequences, pages}, nb::find(*this)};
  }

  void copy_page_turned(int32_t source, int32_t target, int32_t positions) {
    const nb::gil_scoped_release unlocked;
    const Exclusive exclusive(busy_);
    model_.copy_page_turned(source, target, positions);
  }

  void copy_page(int32_t source, int32_t target) {
    const Exclusive exclusive(busy_);
    model_.kv_cache().copy_page(source, target);
  }

  // The next three are called beside a step: not for pages that it writes.
  using Bytes = nb::ndarray<uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
  using ConstBytes = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

  void gather_page(int32_t page, const Bytes& out) {
    require_no_states();
    std::byte* data = reinterpret_cast<std::byte*>(out.data());
    const nb::gil_scoped_release unlocked;
    redoubt::gather_page(model_.kv_cache(), page, data, out.size());
  }

  void scatter_page(int32_t page, const ConstBytes& gathered) {
    require_no_states();
    const std::byte* data = reinterpret_cast<const std::byte*>(gathered.data());
    const nb::gil_scoped_release unlocked;
    redoubt::scatter_page(model_.kv_cache(), page, data, gathered.size());
  }

  void clear_page(int32_t page) { model_.kv_cache().clear_page(page); }

  void forget_slot(int32_t slot) {
    const Exclusive exclusive(busy_);
    model_.forget_slot(slot);
  }

  void copy_state_page(int32_t source, int32_t target) {
    const nb::gil_scoped_release unlocked;
    const Exclusive exclusive(busy_);
    model_.state_pages().copy_page(source, target);
  }

  void clear_state_page(int32_t page) { model_.state_pages().clear_page(page); }

  void release_memory() {
    const nb::gil_scoped_release unlocked;
    const Exclusive exclusive(busy_);
    model_.release_memory();
  }

  std::map<std::string, size_t> resident_bytes() const {
    return {{"weights", model_.weights_bytes()},
            {"kv", const_cast<Model&>(model_).kv_cache().bytes()},
            {"states", const_cast<Model&>(model_).state_pages().bytes()},
            {"activations", model_.activation_bytes()}};
  }

  void start_profile() {
    const Exclusive exclusive(busy_);
    model_.start_profile();
  }

  void stop_profile() {
    const Exclusive exclusive(busy_);
    model_.stop_profile();
  }

  nb::dict profile() const {
    const std::chrono::duration<double> lived = std::chrono::steady_clock::now() - created_;
    const double seconds_per_tick = lived.count() / double(__rdtsc() - created_ticks_);
    const StepProfile& profile = model_.profile();
    nb::dict kinds;
    for (size_t kind = 0; kind < kStepKinds; ++kind) {
      nb::dict stages;
      for (size_t stage = 0; stage < kStages; ++stage) {
        const StageTicks& ticks = profile.ticks[kind][stage];
        stages[kStageNames[stage]] =
            nb::make_tuple(double(ticks.all) * seconds_per_tick, double(ticks.products) * seconds_per_tick,
                           double(ticks.barriers) * seconds_per_tick);
      }
      kinds[kStepKindNames[kind]] = nb::make_tuple(profile.steps[kind], stages);
    }
    return kinds;
  }

 private:
  // A model is not thread-safe; without the GIL, nothing else would notice a second caller.
  class Exclusive {
   public:
    explicit Exclusive(std::atomic_flag& busy) : busy_(busy) {
      if (busy.test_and_set()) throw std::runtime_error("the model is running a step in another thread");
    }
    ~Exclusive() { busy_.clear(); }
    Exclusive(const Exclusive&) = delete;
    Exclusive& operator=(const Exclusive&) = delete;

   private:
    std::atomic_flag& busy_;
  };

  void require_no_states() const {
    if (model_.has_states()) {
      throw std::invalid_argument("pages of a model with states can't be kept outside of it");
    }
  }

  void run(const Batch& batch, const StepOutputs& outputs) {
    const nb::gil_scoped_release unlocked;
    const Exclusive exclusive(busy_);
    model_.run(batch, outputs);
  }

  Model model_;
  std::atomic_flag busy_;
  std::chrono::steady_clock::time_point created_ = std::chrono::steady_clock::now();
  uint64_t created_ticks_ = __rdtsc();
};

void construct(BoundModel* self, const nb::object& folder, int32_t threads, const std::vector<int>& cpus,
               const std::string& compute_type, const std::string& prompt_compute_type,
               const std::string& kv_type, const std::string& weight_memory, const std::vector<int>& nodes,
               bool bind_weights, int32_t kv_pages, int32_t max_sequences, int32_t max_step_tokens,
               int32_t max_context_tokens, bool page_groups, int32_t state_pages, const Predicts& predicts) {
  const auto files = files_of(folder);
  const ModelOptions options = {.folder = files ? "" : nb::cast<std::string>(folder),
                                .threads = threads,
                                .cpus = cpus,
                                .nodes = nodes,
                                .bind_weights = bind_weights,
                                .compute_type = compute_type_from_name(compute_type),
                                .prompt_compute_type = prompt_compute_type_from_name(prompt_compute_type),
                                .kv_type = chosen_kv_type(folder, kv_type, compute_type, prompt_compute_type),
                                .weight_memory = weight_memory_from_name(weight_memory),
                                .kv_pages = kv_pages,
                                .state_pages = state_pages,
                                .max_sequences = max_sequences,
                                .max_step_tokens = max_step_tokens,
                                .max_context_tokens = max_context_tokens,
                                .page_groups = page_groups,
                                .predicts = predicts == Predicts(true),
                                .head = head_of(predicts)};
  const nb::gil_scoped_release unlocked;
  new (self) BoundModel(options, files.get());
}

// With the predictor only if it is used.
ModelConfig config_of(const nb::object& folder, const Predicts& predicts) {
  return with_predictor(config_of(folder), predicts == Predicts(true), head_of(predicts));
}

size_t kv_page_bytes(const nb::object& folder, const std::string& kv_type,
                     std::optional<int32_t> grouped_context_tokens, const Predicts& predicts) {
  const ModelConfig config = config_of(folder, predicts);
  const PageGroups groups =
      grouped_context_tokens ? page_groups_of(config, *grouped_context_tokens) : one_page_group(config);
  return KvCache::page_bytes(kv_type_from_name(kv_type), groups);
}

std::vector<int32_t> page_group_windows(const nb::object& folder, int32_t max_context_tokens,
                                        const Predicts& predicts) {
  return page_groups_of(config_of(folder, predicts), max_context_tokens).windows;
}

bool has_predictor(const nb::object& folder) { return config_of(folder).predictor.has_value(); }

size_t state_page_bytes(const nb::object& folder) { return StatePages::page_bytes(config_of(folder)); }

// (experts of a layer, how many a token takes), the most of any layer.
std::pair<int32_t, int32_t> experts_of(const nb::object& folder) {
  std::pair<int32_t, int32_t> most = {0, 0};
  for (const LayerConfig& kind : config_of(folder).kinds) {
    if (kind.experts) most = std::max(most, {kind.experts->count, kind.experts->per_token});
  }
  return most;
}

// Nothing is touched, so it takes no memory.
size_t activation_bytes(const nb::object& folder, int32_t threads, int32_t max_sequences,
                        int32_t max_step_tokens, const Predicts& predicts) {
  return Workspace(config_of(folder, predicts), max_step_tokens, max_sequences, threads).bytes();
}

}  // namespace

void bind_model(nb::module_& module) {
  nb::exception<PackedFileError>(module, "PackedFileError", PyExc_ValueError);

  const auto token_ids = nb::arg("token_ids"), positions = nb::arg("positions"), slots = nb::arg("slots"),
             query_lengths = nb::arg("query_lengths"), context_lengths = nb::arg("context_lengths");
  nb::class_<BoundModel>(module, "Model")
      .def("__init__", &construct, nb::arg("folder"), nb::kw_only(), nb::arg("threads"),
           nb::arg("cpus") = std::vector<int>{}, nb::arg("compute_type") = "int8",
           nb::arg("prompt_compute_type") = "same", nb::arg("kv_type") = "auto",
           nb::arg("weight_memory") = "auto", nb::arg("nodes") = std::vector<int>{},
           nb::arg("bind_weights") = true, nb::arg("kv_pages"), nb::arg("max_sequences"),
           nb::arg("max_step_tokens"), nb::arg("max_context_tokens"), nb::arg("page_groups") = false,
           nb::arg("state_pages") = 0, nb::arg("predicts") = Predicts(false))
      .def_static("kv_page_bytes", &kv_page_bytes, nb::arg("folder"), nb::arg("kv_type"),
                  nb::arg("grouped_context_tokens") = nb::none(), nb::arg("predicts") = Predicts(false))
      .def_static("page_group_windows", &page_group_windows, nb::arg("folder"), nb::arg("max_context_tokens"),
                  nb::arg("predicts") = Predicts(false))
      .def_static("has_predictor", &has_predictor, nb::arg("folder"))
      .def_static("state_page_bytes", &state_page_bytes, nb::arg("folder"))
      .def_static("experts", &experts_of, nb::arg("folder"))
      .def_static("activation_bytes", &activation_bytes, nb::arg("folder"), nb::kw_only(), nb::arg("threads"),
                  nb::arg("max_sequences"), nb::arg("max_step_tokens"), nb::arg("predicts") = Predicts(false))
      .def_static(
          "chosen_kv_type",
          [](const nb::object& folder, const std::string& name, const std::string& compute,
             const std::string& prompts) {
            return kv_type_name(chosen_kv_type(folder, name, compute, prompts));
          },
          nb::arg("folder"), nb::arg("kv_type"), nb::arg("compute_type"), nb::arg("prompt_compute_type"))
      .def_prop_ro("kv_type", [](BoundModel& self) { return kv_type_name(self.model().options().kv_type); })
      .def_prop_ro("tier", [](BoundModel& self) { return std::string(tier_name(self.model().tier())); })
      .def_prop_ro("attention_tier",
                   [](BoundModel& self) { return std::string(tier_name(self.model().attention_tier())); })
      .def_prop_ro("weight_memory",
                   [](BoundModel& self) { return weight_memory_name(self.model().weight_memory()); })
      .def_prop_ro("vocab_size", [](BoundModel& self) { return self.model().config().vocab_size; })
      .def_prop_ro("hidden_size", [](BoundModel& self) { return self.model().config().hidden_size; })
      .def_prop_ro("layers", [](BoundModel& self) { return self.model().config().layers; })
      .def_prop_ro("has_bf16_prompts", [](BoundModel& self) { return self.model().has_bf16_prompts(); })
      .def_prop_ro("threads", [](BoundModel& self) { return self.model().options().threads; })
      .def_prop_ro("is_encoder", [](BoundModel& self) { return self.model().config().encoder; })
      .def_prop_ro("has_states", [](BoundModel& self) { return self.model().has_states(); })
      .def_prop_ro("predicts", [](BoundModel& self) { return self.model().config().predictor.has_value(); })
      .def_prop_ro("page_table", &BoundModel::page_table)
      .def_prop_ro("group_windows", [](BoundModel& self) { return self.model().page_groups().windows; })
      .def("step", &BoundModel::step, token_ids, positions, slots, query_lengths, context_lengths,
           nb::arg("samplers"), nb::arg("readers") = nb::tuple(), nb::arg("draft_lengths") = nb::none(),
           nb::arg("prompts") = 0, nb::arg("interrupt") = nb::none())
      .def("draft", &BoundModel::draft, token_ids, positions, slots, context_lengths, nb::arg("depth"),
           nb::arg("samplers") = nb::tuple())
      .def("logits", &BoundModel::logits, token_ids, positions, slots, query_lengths, context_lengths)
      .def("hidden_states", &BoundModel::hidden_states, token_ids, positions, slots, query_lengths,
           context_lengths)
      .def("encode", &BoundModel::encode, token_ids, positions, query_lengths, nb::arg("first_layer") = 0,
           nb::arg("end_layer") = 0, nb::arg("first_row") = 0, nb::arg("end_row") = 0,
           nb::arg("keys") = false)
      .def("layer_activations", &BoundModel::layer_activations, nb::arg("hidden"), positions, slots,
           query_lengths, nb::arg("wanted"))
      .def("copy_page", &BoundModel::copy_page, nb::arg("source"), nb::arg("target"))
      .def("copy_page_turned", &BoundModel::copy_page_turned, nb::arg("source"), nb::arg("target"),
           nb::arg("positions"))
      .def("gather_page", &BoundModel::gather_page, nb::arg("page"), nb::arg("out").noconvert())
      .def("scatter_page", &BoundModel::scatter_page, nb::arg("page"), nb::arg("gathered").noconvert())
      .def("clear_page", &BoundModel::clear_page, nb::arg("page"))
      .def("forget_slot", &BoundModel::forget_slot, nb::arg("slot"))
      .def("copy_state_page", &BoundModel::copy_state_page, nb::arg("source"), nb::arg("target"))
      .def("clear_state_page", &BoundModel::clear_state_page, nb::arg("page"))
      .def_prop_ro("gathered_page_bytes",
                   [](BoundModel& self) { return gathered_page_bytes(self.model().kv_cache()); })
      .def_prop_ro("has_relative_positions",
                   [](BoundModel& self) { return self.model().has_relative_positions(); })
      .def("release_memory", &BoundModel::release_memory)
      .def("resident_bytes", &BoundModel::resident_bytes)
      .def("profile", &BoundModel::profile)
      .def("start_profile", &BoundModel::start_profile)
      .def("stop_profile", &BoundModel::stop_profile);
}

}  // namespace redoubt
