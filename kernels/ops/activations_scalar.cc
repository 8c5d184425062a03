// The activations of MLPs (formulas: contract/activation.h), scalar: defines the results.
#include "contract/kernel_table.h"
#include "ops/scalar.h"
#include "simd/scalar.h"

namespace redoubt::scalar {
namespace {

// e^(x + low), where low is a rounding error of x: x log2(e) kept to two floats.
float exp_of_sum(float x, float low) {
  const float biased = std::fma(x, kLog2eHigh, kRoundMagic);
  const float n = biased - kRoundMagic;
  const float f = std::fma(x, kLog2eLow, std::fma(x, kLog2eHigh, -n));
  return exp2_of_parts(std::fma(low, kLog2eHigh, f), biased);
}

// e^x with x = log2(e) x kept to two floats; x log2(e) is clamped to +-kSiluClamp; NaN stays NaN.
float exp_clamped(float x) {
  const float limit = kSiluClamp / kLog2eHigh;
  x = limit < x ? limit : x;
  x = -limit > x ? -limit : x;
  const float biased = std::fma(x, kLog2eHigh, kRoundMagic);
  const float n = biased - kRoundMagic;
  return exp2_of_parts(std::fma(x, kLog2eLow, std::fma(x, kLog2eHigh, -n)), biased);
}

template <size_t kTerms>
float polynomial(const float (&coefficients)[kTerms], float x) {
  float sum = coefficients[kTerms - 1];
  for (size_t i = kTerms - 1; i > 0; --i) sum = std::fma(sum, x, coefficients[i - 1]);
  return sum;
}

// The standard normal distribution; NaN stays NaN.
float normal_distribution(float x) {
  const float a = std::fabs(x), square = a * a, half = -0.5f * square;
  float tail = 0.0f;
  if (!(half < kTailSmallest)) {
    const float low = -0.5f * std::fma(a, a, -square);
    tail = exp_of_sum(half, low) * (polynomial(kTailP, a) / polynomial(kTailQ, a));
  }
  return std::signbit(x) ? tail : 1.0f - tail;
}

// What an activation does to a gate, and what it multiplies it by.
template <Activation kActivation>
float activated(float x) {
  if constexpr (kActivation == Activation::kGeluTanh) {
    return x / (1.0f + exp_clamped(x * std::fma(x * x, -kGeluTanhCubic, -kGeluTanhLinear)));
  } else if constexpr (kActivation == Activation::kGeluErf) {
    return x * normal_distribution(x);
  } else if constexpr (kActivation == Activation::kRelu) {
    return 0.0f > x ? 0.0f : x;
  } else if constexpr (kActivation == Activation::kRelu2) {
    const float positive = 0.0f > x ? 0.0f : x;
    return positive * positive;
  } else if constexpr (kActivation == Activation::kSwigluOai) {
    x = kSwigluLimit < x ? kSwigluLimit : x;
    return x / (1.0f + exp_clamped(-kSwigluSteepness * x));
  } else {
    return x / (1.0f + exp_clamped(-x));
  }
}
template <Activation kActivation>
float factor_of(float up) {
  if constexpr (kActivation != Activation::kSwigluOai) return up;
  up = kSwigluLimit < up ? kSwigluLimit : up;
  up = -kSwigluLimit > up ? -kSwigluLimit : up;
  return up + 1.0f;
}

}  // namespace

template <Activation kActivation>
void activate(const float* gate, const float* up, int n, float* out) {
  for (int i = 0; i < n; ++i) {
    const float value = activated<kActivation>(gate[i]);
    out[i] = up == nullptr ? value : value * factor_of<kActivation>(up[i]);
  }
}
template ActivateRow activate<Activation::kSilu>;
template ActivateRow activate<Activation::kGeluTanh>;
template ActivateRow activate<Activation::kGeluErf>;
template ActivateRow activate<Activation::kRelu>;
template ActivateRow activate<Activation::kRelu2>;
template ActivateRow activate<Activation::kSwigluOai>;

void gate_by_sigmoid(const float* gate, int n, float* x) {
  for (int i = 0; i < n; ++i) x[i] = x[i] / (1.0f + exp_clamped(-gate[i]));
}

}  // namespace redoubt::scalar
