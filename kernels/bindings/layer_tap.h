// NumPy arrays for the activations that a step's tap copies.
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <string>
#include <vector>

#include "model/config.h"
#include "step/batch.h"

namespace redoubt {

// Room for the wanted activations of the model's last layer, by LayerTap's names.
class TappedArrays {
 public:
  // Throws std::invalid_argument for a name that this layer does not have, and for none at all.
  TappedArrays(const ModelConfig& config, size_t tokens, const std::vector<std::string>& wanted);

  const LayerTap& tap() const { return tap_; }
  nanobind::dict arrays() const { return arrays_; }

 private:
  void add(const ModelConfig& config, size_t tokens, const std::string& name);
  template <typename T>
  T* array(const std::string& name, size_t rows, size_t cols);

  LayerTap tap_;
  nanobind::dict arrays_;
};

}  // namespace redoubt
