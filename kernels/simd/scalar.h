// Shared by the scalar kernels: the exponential, tanh and sums of lanes, the twins of exp2-inl.h and
// tanh-inl.h. Compiled for the baseline and without vectorization.
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "simd/numbers.h"

namespace redoubt::scalar {

// 2^n times the polynomial of f, where biased = n + kRoundMagic.
template <const auto& kCoefficients = kExp2>
inline float exp2_of_parts(float f, float biased) {
  constexpr size_t kTerms = sizeof kCoefficients / sizeof kCoefficients[0];
  float poly = kCoefficients[kTerms - 1];
  for (size_t i = kTerms - 1; i > 0; --i) poly = std::fma(poly, f, kCoefficients[i - 1]);
  poly = std::fma(poly, f, 1.0f);
  return poly * std::bit_cast<float>(std::bit_cast<uint32_t>(biased) << 23);
}

// 2^x for x <= 0; 0 below `smallest`; NaN stays NaN.
template <const auto& kCoefficients = kExp2>
inline float exp2_nonpositive(float x, float smallest = kExp2Smallest) {
  if (x < smallest) return 0.0f;
  const float biased = x + kRoundMagic;
  return exp2_of_parts<kCoefficients>(x - (biased - kRoundMagic), biased);
}

// Its relative error is that of a few roundings everywhere; NaN stays NaN.
inline float tanh(float x) {
  float y = 2.0f * x;
  y = kTanhClamp < y ? kTanhClamp : y;
  y = -kTanhClamp > y ? -kTanhClamp : y;
  const float biased = std::fma(y, kLog2eHigh, kRoundMagic);
  const float n = biased - kRoundMagic;
  const float f = std::fma(y, kLog2eLow, std::fma(y, kLog2eHigh, -n));
  constexpr size_t kTerms = sizeof kExp2 / sizeof kExp2[0];
  float poly = kExp2[kTerms - 1];
  for (size_t i = kTerms - 1; i > 0; --i) poly = std::fma(poly, f, kExp2[i - 1]);
  const float power = std::bit_cast<float>(std::bit_cast<uint32_t>(biased) << 23);
  const float m = std::fma(poly * f, power, power - 1.0f);
  return m / (m + 2.0f);
}

template <int kLanes>
inline float sum_lanes(float (&lanes)[kLanes]) {
  for (int half = kLanes / 2; half > 0; half /= 2) {
    for (int l = 0; l < half; ++l) lanes[l] += lanes[l + half];
  }
  return lanes[0];
}

}  // namespace redoubt::scalar
