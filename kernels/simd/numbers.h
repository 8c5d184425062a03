// The numbers that every tier of the non-linear kernels shares: the exponential's polynomials and the shapes
// of sums. All tiers do the same IEEE operations in the same order per output, so they agree bit for bit.
// Knows no kernel.
//
// 2^x: n = round(x) by adding and subtracting kRoundMagic, f = x - n in [-0.5, 0.5], then a polynomial
// (Horner, fma) times 2^n; but see kExp2ToBf16. Polynomials are minimax fits of the relative error with the
// constant term held at 1, so that 2^0 == 1 exactly.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "contract/float_formats.h"
#include "contract/kernel_table.h"

namespace redoubt {

// 1.5 * 2^23 + 127: after the addition the low bits hold n + 127, the biased exponent of 2^n.
inline constexpr float kRoundMagic = 12583039.0f;
// Coefficients of f, f^2, ... With the fp32 evaluation the relative error is below 8e-8 (1.4 units of 2^-24).
inline constexpr float kExp2[] = {0x1.62e430p-1f, 0x1.ebfbdcp-3f,  0x1.c6aee8p-5f,
                                  0x1.3b2d4cp-7f, 0x1.5f3e54p-10f, 0x1.41fbbcp-13f};
// Relative error below 3e-6 (2^-18.4): for weights that become 16-bit fixed point.
inline constexpr float kExp2ToFixed[] = {0x1.62e12ap-1f, 0x1.ec0382p-3f, 0x1.c9fd1ep-5f, 0x1.3a007ap-7f};
// Relative error below 1.1e-4 (2^-13.2), for weights that become bf16: 2^x is 2^floor(x) times the polynomial
// of f = x - floor(x) in [0, 1], which is 1 at 0 and 2 at 1.
inline constexpr float kExp2ToBf16[] = {0x1.640ea4p-1f, 0x1.cf7ac2p-3f, 0x1.409564p-4f};
// Below this, weights of attention are 0: 2^x would leave the normal numbers.
inline constexpr float kExp2Smallest = -125.0f;
// With fixed point weights are 0 below this, and with bf16 products x is no less: times a small value's scale
// weights would leave the normal numbers, which costs Intel's processors more than a hundred cycles each.
inline constexpr float kExp2SmallestScaled = -100.0f;

// log2(e) as a sum of two floats.
inline constexpr float kLog2eHigh = 0x1.715476p+0f;
inline constexpr float kLog2eLow = 0x1.4ae0c0p-26f;
// silu takes e^-gate no further than 2^+-this: past it silu is gate, or below 1e-35 in magnitude.
inline constexpr float kSiluClamp = 125.0f;

// Lane l of a sum takes elements l, l + lanes, ... in ascending order; then the upper half of the lanes is
// added to the lower until one is left.
inline constexpr int kNormLanes = 64;
inline constexpr int kSoftmaxLanes = 16;

// States of partitions (contract/kernel_table.h): maximum (of scores times log2(e)), sum, output[head_dim].
inline constexpr int kStateMax = 0;
inline constexpr int kStateSum = 1;
inline constexpr int kStateOutput = 2;
inline constexpr int state_floats(int head_dim) { return head_dim + kStateOutput; }

// The keys that a query token sees: it and all before it.
inline int visible_keys(const AttentionTask& task, int query_token) {
  return task.context_before + query_token + 1;
}
inline int partitions_of(int keys) { return (keys + kPartitionTokens - 1) / kPartitionTokens; }
// How many of `keys` keys lie in partition p.
inline int keys_in_partition(int keys, int p) {
  const int rest = keys - p * kPartitionTokens;
  return rest < 0 ? 0 : rest > kPartitionTokens ? kPartitionTokens : rest;
}

inline std::byte* page_block(const KvView& kv, int page) {
  return kv.base + int64_t(kv.page_table[page]) * kv.page_stride;
}
// Where a block's values begin: after head_dim * kPageTokens keys.
inline size_t values_offset_bytes(KvType type, int head_dim) {
  return size_t(head_dim) * kPageTokens * kv_number_bytes(type);
}
// Where the scales of a block of integers begin: after its values.
inline size_t scales_offset_bytes(KvType type, int head_dim) {
  return 2 * values_offset_bytes(type, head_dim);
}

// The largest codes of keys and values in pages of integers. That their scale is rounded to bf16 makes
// int16's larger by 2^-8 at most: 4095.
inline constexpr int32_t largest_code(KvType type) { return type == KvType::kInt8 ? 127 : 4079; }
// Magnitudes compare as their bits do, and what is not finite comes last.
inline constexpr uint32_t kMagnitudeBits = 0x7fffffff;

// How numbers with this largest magnitude become integers of at most `most`: x is round(x * inverse) times
// `scale`. All 0 where the numbers are tiny, and 0 times NaN where one is not finite.
struct FixedPoint {
  float scale = 0.0f;
  float inverse = 0.0f;
};
inline FixedPoint fixed_point(uint32_t largest_bits, int32_t most) {
  const float largest = std::bit_cast<float>(largest_bits);
  if (largest < kSmallestQuantized) return {};
  if (!(largest <= std::numeric_limits<float>::max())) return {std::numeric_limits<float>::quiet_NaN(), 0.0f};
  return {largest / float(most), float(most) / largest};
}
// The same for keys and values: their scale is kept as bf16, so it is rounded first.
inline FixedPoint kv_fixed_point(KvType type, uint32_t largest_bits) {
  FixedPoint fixed = fixed_point(largest_bits, largest_code(type));
  if (fixed.inverse == 0.0f) return fixed;
  fixed.scale = bf16_to_float(float_to_bf16(fixed.scale));
  fixed.inverse = 1.0f / fixed.scale;
  return fixed;
}

// What such keys and values are multiplied with, queries and weights, is 16-bit fixed point too, of a scale
// such that int32 sums can't overflow. Over int8 pages the number of products alone sees to that:
// kPartitionTokens, and head_dim. Over int16 pages the sum of the codes does: it is kLargestSum at most but
// for half a code each and its own rounding. That is 512 times 1016: equal weights of a full partition are
// whole codes.
inline constexpr int32_t kLargestFactor = 32767;
inline constexpr int32_t kLargestSum = 520192;
static_assert(int64_t(kLargestFactor) * largest_code(KvType::kInt8) * kPartitionTokens < int64_t(1) << 31);
static_assert((int64_t(kLargestSum) + 4096) * 4095 < int64_t(1) << 31);

// Of `count` numbers with this largest magnitude and, where pages are int16, this sum of magnitudes.
inline FixedPoint factors_fixed_point(KvType pages, uint32_t largest_bits, float sum, int count) {
  if (pages == KvType::kInt8) return fixed_point(largest_bits, kLargestFactor / ((count + 511) / 512));
  constexpr float kShare = float(kLargestFactor) / float(kLargestSum);
  const uint32_t least_bits = std::bit_cast<uint32_t>(sum * kShare);
  return fixed_point(largest_bits > least_bits ? largest_bits : least_bits, kLargestFactor);
}

}  // namespace redoubt
