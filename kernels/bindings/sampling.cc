// Python's view of the sampler and of the readers of prompts: checks shapes, releases the GIL, calls. No
// arithmetic.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unordered_map.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

#include "bindings/arrays.h"
#include "bindings/module.h"
#include "sampling/hidden_history.h"
#include "sampling/prompt_reader.h"
#include "sampling/sampler.h"

namespace nb = nanobind;

namespace redoubt {
namespace {

int32_t sample(Sampler& sampler, const Input<float, 1>& logits) {
  if (logits.shape(0) != size_t(sampler.vocab_size())) {
    throw std::invalid_argument("logits: not [vocab_size]");
  }
  nb::gil_scoped_release unlocked;
  std::vector<float> work(logits.data(), logits.data() + logits.shape(0));
  return sampler.sample(work.data());
}

void make_sampler(Sampler* self, int32_t vocab_size, const std::vector<int32_t>& prompt, float temperature,
                  int32_t top_k, float top_p, float min_p, float repetition_penalty, float presence_penalty,
                  float frequency_penalty, const std::unordered_map<int32_t, float>& logit_bias,
                  uint64_t seed, int32_t min_tokens, const std::vector<int32_t>& end_tokens, int32_t logprobs,
                  int32_t candidates, bool penalize_logprobs) {
  new (self) Sampler({.temperature = temperature,
                      .top_k = top_k,
                      .top_p = top_p,
                      .min_p = min_p,
                      .repetition_penalty = repetition_penalty,
                      .presence_penalty = presence_penalty,
                      .frequency_penalty = frequency_penalty,
                      .logit_bias = {logit_bias.begin(), logit_bias.end()},
                      .seed = seed,
                      .min_tokens = min_tokens,
                      .end_tokens = end_tokens,
                      .logprobs = logprobs,
                      .candidates = candidates,
                      .penalize_logprobs = penalize_logprobs},
                     vocab_size, prompt);
}

template <typename T>
nb::ndarray<nb::numpy, T> as_array(std::vector<T> values, std::initializer_list<size_t> shape) {
  auto memory = std::make_unique<std::vector<T>>(std::move(values));
  nb::capsule owner(memory.get(),
                    [](void* pointer) noexcept { delete static_cast<std::vector<T>*>(pointer); });
  return nb::ndarray<nb::numpy, T>(memory.release()->data(), shape, owner);
}

nb::tuple as_tuple(const TokenScores& scores) {
  const size_t count = scores.logprobs.size(), top = size_t(scores.top);
  return nb::make_tuple(as_array(scores.logprobs, {count}), as_array(scores.top_tokens, {count, top}),
                        as_array(scores.top_logprobs, {count, top}));
}

nb::ndarray<nb::numpy, uint32_t> sampler_masks(Sampler& self, int32_t rows) {
  if (rows < 1) throw std::invalid_argument("rows must be at least 1, not " + std::to_string(rows));
  std::vector<uint32_t>& masks = self.masks(rows);
  return nb::ndarray<nb::numpy, uint32_t>(masks.data(), {size_t(rows), masks.size() / size_t(rows)},
                                          nb::find(self));
}

Pooling pooling_from_name(const std::string& name) {
  if (name == "mean") return Pooling::kMean;
  if (name == "last") return Pooling::kLast;
  throw std::invalid_argument("pooling: '" + name + "' is not mean or last");
}

void make_embedder(PromptEmbedder* self, int32_t hidden_size, int32_t prompt_tokens,
                   const std::string& pooling) {
  new (self) PromptEmbedder(hidden_size, prompt_tokens, pooling_from_name(pooling));
}

nb::ndarray<nb::numpy, float> embedding_of(const PromptEmbedder& self) {
  std::vector<float> values = self.embedding();
  const size_t size = values.size();
  return as_array(std::move(values), {size});
}

}  // namespace

void bind_sampling(nb::module_& module) {
  using nb::arg;
  nb::class_<Sampler>(module, "Sampler")
      .def("__init__", &make_sampler, nb::kw_only(), arg("vocab_size"), arg("prompt"),
           arg("temperature") = 1.0f, arg("top_k") = 0, arg("top_p") = 1.0f, arg("min_p") = 0.0f,
           arg("repetition_penalty") = 1.0f, arg("presence_penalty") = 0.0f, arg("frequency_penalty") = 0.0f,
           arg("logit_bias") = nb::dict(), arg("seed") = 0, arg("min_tokens") = 0,
           arg("end_tokens") = std::vector<int32_t>{}, arg("logprobs") = -1, arg("candidates") = 0,
           arg("penalize_logprobs") = false)
      .def("sample", &sample, arg("logits"))
      .def("remember", &Sampler::remember, arg("tokens"))
      .def("after", &Sampler::after, arg("token"))
      .def("masks", &sampler_masks, arg("rows"))
      .def("set_masked", &Sampler::set_masked, arg("masked"))
      .def("take_scores", [](Sampler& self) { return as_tuple(self.take_scores()); });
  nb::class_<PromptReader>(module, "PromptReader");
  nb::class_<PromptScorer, PromptReader>(module, "PromptScorer")
      .def(nb::init<int32_t, std::vector<int32_t>, int32_t>(), nb::kw_only(), arg("vocab_size"),
           arg("prompt"), arg("top"))
      .def("scores", [](const PromptScorer& self) { return as_tuple(self.scores()); });
  nb::class_<HiddenHistory>(module, "HiddenHistory")
      .def(nb::init<int32_t>(), nb::kw_only(), arg("hidden_size"))
      .def_prop_ro("tokens", &HiddenHistory::tokens);
  nb::class_<HistoryWriter, PromptReader>(module, "HistoryWriter")
      .def(nb::init<std::shared_ptr<HiddenHistory>>(), arg("history"));
  nb::class_<CandidateReader, PromptReader>(module, "CandidateReader")
      .def(nb::init<std::shared_ptr<HiddenHistory>>(), arg("history"))
      .def_prop_ro("similarity", &CandidateReader::similarity)
      .def("choose", &CandidateReader::choose);
  nb::class_<PromptEmbedder, PromptReader>(module, "PromptEmbedder")
      .def("__init__", &make_embedder, nb::kw_only(), arg("hidden_size"), arg("prompt_tokens"),
           arg("pooling"))
      .def("embedding", &embedding_of);
}

}  // namespace redoubt
