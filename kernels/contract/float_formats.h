// fp16 and bf16 as bit patterns, in plain C++: for packing, the scalar tier and single values. Exact,
// rounding to nearest even (IEEE 754-2019, section 3.6). Knows nothing of matrices.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace redoubt {

// Numbers with a smaller largest magnitude are quantized to 0, so that neither their scale nor its inverse
// leaves the normal range.
inline constexpr float kSmallestQuantized = 0x1p-100f;

// The bits of a float's magnitude. Magnitudes compare as these bits do; infinity and NaN are the largest.
inline constexpr uint32_t kMagnitudeBits = 0x7fffffff;

inline float bf16_to_float(uint16_t bits) { return std::bit_cast<float>(uint32_t(bits) << 16); }

inline uint16_t float_to_bf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return uint16_t(bits >> 16 | 0x40u);  // NaN becomes a quiet NaN
  return uint16_t((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

// Replaces a subnormal number by 0 of the same sign, as bf16 instructions do with inputs and results.
inline float flush_subnormal(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  return (bits & 0x7f800000u) == 0 ? std::bit_cast<float>(bits & 0x80000000u) : value;
}

inline float fp16_to_float(uint16_t bits) {
  const uint32_t sign = uint32_t(bits & 0x8000u) << 16;
  const uint32_t magnitude = bits & 0x7fffu;
  if (magnitude >= 0x7c00u) return std::bit_cast<float>(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
  // A subnormal's value is its bits times 2^-24; a normal's exponent bias goes from 15 to 127.
  if (magnitude < 0x400u)
    return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(float(magnitude) * 0x1p-24f));
  return std::bit_cast<float>(sign | ((magnitude << 13) + (112u << 23)));
}

// Converts a normal number that is exact in fp16.
constexpr uint16_t exact_fp16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  return uint16_t((bits >> 16 & 0x8000u) | ((bits & 0x7fffffffu) - (112u << 23)) >> 13);
}

// Rounds to the nearest fp16 number, ties to even. value: not NaN.
inline uint16_t double_to_fp16(double value) {
  const uint32_t sign = std::signbit(value) ? 0x8000u : 0;
  const double magnitude = std::fabs(value);
  if (magnitude >= 65520.0) return uint16_t(sign | 0x7c00u);
  // As an integer, a number's bits count the numbers below it: 1,024 per power of two.
  const int exponent = magnitude < 0x1p-14 ? -14 : std::ilogb(magnitude);
  const double steps = std::nearbyint(std::ldexp(magnitude, 10 - exponent));
  return uint16_t(sign | uint32_t(int(steps) + 1024 * (exponent + 14)));
}

inline uint16_t float_to_fp16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value), magnitude = bits & kMagnitudeBits;
  const uint32_t sign = bits >> 16 & 0x8000u;
  if (magnitude > 0x7f800000u) return uint16_t(sign | 0x7e00u);   // NaN becomes a quiet NaN
  if (magnitude >= 0x477ff000u) return uint16_t(sign | 0x7c00u);  // from 65,520 on: infinity
  if (magnitude >= 0x38800000u) {
    return uint16_t(sign | (magnitude - (112u << 23) + 0xfffu + (magnitude >> 13 & 1u)) >> 13);
  }
  // Below 2^-14 numbers are 2^-24 apart, as they are from 0.5 on in fp32.
  return uint16_t(sign | (std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3f000000u));
}

// a * b + c of finite numbers, rounded once.
inline uint16_t fp16_multiply_add(uint16_t a, uint16_t b, uint16_t c) {
  // The error of the sum in double is far less than half a step of c.
  return double_to_fp16(double(fp16_to_float(a)) * double(fp16_to_float(b)) + double(fp16_to_float(c)));
}

}  // namespace redoubt
