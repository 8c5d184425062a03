// Activations by name.
#include "contract/activation.h"

#include <stdexcept>
#include <string>

namespace redoubt {

Activation activation_from_name(std::string_view name) {
  std::string names;
  for (int i = 0; i < kActivations; ++i) {
    if (name == kActivationNames[i]) return Activation(i);
    names += (i == 0 ? "" : ", ") + std::string(kActivationNames[i]);
  }
  throw std::invalid_argument("unknown activation '" + std::string(name) + "'; there are: " + names);
}

}  // namespace redoubt
