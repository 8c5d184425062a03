// The activation functions of MLPs. Knows no kernel and no model.
#pragma once

#include <cstdint>
#include <string_view>

namespace redoubt {

// With sigmoid(x) = 1 / (1 + e^-x) and Phi the standard normal distribution:
//   kSilu       x * sigmoid(x) (Elfwing et al. 2017)
//   kGeluTanh   x * sigmoid(2 sqrt(2 / pi) (x + 0.044715 x^3)) (Hendrycks and Gimpel 2016)
//   kGeluErf    x * Phi(x) (the same)
//   kRelu      max(x, 0)
//   kRelu2      max(x, 0)^2 (So et al. 2021)
//   kSwigluOai  of gpt-oss: min(x, 7) * sigmoid(1.702 min(x, 7)), whose factor is clamp(up, -7, 7) + 1
enum class Activation : uint8_t { kSilu, kGeluTanh, kGeluErf, kRelu, kRelu2, kSwigluOai };
inline constexpr int kActivations = 6;
// In the order above, as descriptions of models have them.
inline constexpr std::string_view kActivationNames[kActivations] = {"silu", "gelu_tanh", "gelu_erf",
                                                                    "relu", "relu2",     "swiglu_oai"};
// Throws std::invalid_argument for a name that none has.
Activation activation_from_name(std::string_view name);

}  // namespace redoubt
