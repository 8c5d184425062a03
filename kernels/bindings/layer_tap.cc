// Arrays for a tap (contract: bindings/layer_tap.h).
#include "bindings/layer_tap.h"

#include <nanobind/ndarray.h>

#include <cstdint>
#include <stdexcept>

#include "bindings/arrays.h"

namespace redoubt {

TappedArrays::TappedArrays(const ModelConfig& config, size_t tokens, const std::vector<std::string>& wanted) {
  if (wanted.empty()) throw std::invalid_argument("wanted: is empty");
  for (const std::string& name : wanted) add(config, tokens, name);
}

template <typename T>
T* TappedArrays::array(const std::string& name, size_t rows, size_t cols) {
  Output<T> output(rows, cols);
  T* const data = output.data();
  arrays_[name.c_str()] = output.release();
  return data;
}

void TappedArrays::add(const ModelConfig& config, size_t tokens, const std::string& name) {
  const LayerConfig& layer = config.layer(config.layers - 1);
  const auto& experts = layer.experts;
  const auto& latent = layer.attention.latent;
  const size_t hidden = size_t(config.hidden_size), heads = size_t(config.heads);
  const size_t pairs = experts ? tokens * size_t(experts->per_token) : 0;
  if (name == "attention_input") {
    tap_.attention_input = array<float>(name, tokens, hidden);
  } else if (name == "output_input") {
    tap_.output_input = array<float>(name, tokens, size_t(config.output_inputs(layer)));
  } else if (name == "query_input" && latent && latent->query_rank > 0) {
    tap_.query_input = array<float>(name, tokens, size_t(latent->query_rank));
  } else if (name == "key_up_input" && latent) {
    tap_.key_up_input = array<float>(name, tokens, heads * size_t(latent->nope_dim));
  } else if (name == "value_up_input" && latent) {
    tap_.value_up_input = array<float>(name, tokens, heads * size_t(latent->kv_rank));
  } else if (name == "attention_output") {
    tap_.attention_output = array<float>(name, tokens, hidden);
  } else if (name == "mlp_input") {
    tap_.mlp_input = array<float>(name, tokens, hidden);
  } else if (name == "pairs" && experts) {
    tap_.pairs = array<int32_t>(name, pairs, 2);
  } else if (name == "down_input" && experts) {
    tap_.down_input = array<float>(name, pairs, size_t(experts->mlp.inner));
  } else if (name == "down_input") {
    tap_.down_input = array<float>(name, tokens, size_t(layer.mlp->inner));
  } else if (name == "shared_down_input" && experts && experts->shared) {
    tap_.shared_down_input = array<float>(name, tokens, size_t(experts->shared->inner));
  } else if (name == "experts_input" && layer.has_both()) {
    tap_.experts_input = array<float>(name, tokens, hidden);
  } else if (name == "dense_down_input" && layer.has_both()) {
    tap_.dense_down_input = array<float>(name, tokens, size_t(layer.mlp->inner));
  } else if (name == "mlp_output") {
    tap_.mlp_output = array<float>(name, tokens, hidden);
  } else if (name == "hidden") {
    tap_.hidden = array<float>(name, tokens, hidden);
  } else {
    throw std::invalid_argument("wanted: '" + name + "' is no activation of this layer");
  }
}

}  // namespace redoubt
