// The numbers that every tier of the non-linear kernels shares: the exponential's polynomial and the shapes
// of sums. All tiers do the same IEEE operations in the same order per output, so they agree bit for bit.
// Knows no kernel.
//
// 2^x: n = round(x) by adding and subtracting kRoundMagic, f = x - n in [-0.5, 0.5], then a polynomial
// (Horner, fma) times 2^n. A minimax fit of the relative error with the constant term held at 1, so that 2^0
// == 1 exactly; with its fp32 evaluation the relative error is below 8e-8 (1.4 units of 2^-24).
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernel_table.h"

namespace redoubt {

// 1.5 * 2^23 + 127: after the addition the low bits hold n + 127, the biased exponent of 2^n.
inline constexpr float kRoundMagic = 12583039.0f;
inline constexpr float kExp2C1 = 0x1.62e430p-1f;
inline constexpr float kExp2C2 = 0x1.ebfbdcp-3f;
inline constexpr float kExp2C3 = 0x1.c6aee8p-5f;
inline constexpr float kExp2C4 = 0x1.3b2d4cp-7f;
inline constexpr float kExp2C5 = 0x1.5f3e54p-10f;
inline constexpr float kExp2C6 = 0x1.41fbbcp-13f;
// Below this, weights of attention are 0: 2^x would leave the normal numbers.
inline constexpr float kExp2Smallest = -125.0f;

// log2(e) as a sum of two floats.
inline constexpr float kLog2eHigh = 0x1.715476p+0f;
inline constexpr float kLog2eLow = 0x1.4ae0c0p-26f;
// silu takes e^-gate no further than 2^+-this: past it silu is gate, or below 1e-35 in magnitude.
inline constexpr float kSiluClamp = 125.0f;

// Lane l of a sum takes elements l, l + lanes, ... in ascending order; then the upper half of the lanes is
// added to the lower until one is left.
inline constexpr int kNormLanes = 64;
inline constexpr int kSoftmaxLanes = 16;

// States of partitions (kernel_table.h): maximum (of scores times log2(e)), sum, output[head_dim].
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
inline size_t values_offset_bytes(KvType type, int head_dim) { return kv_block_bytes(type, head_dim) / 2; }

}  // namespace redoubt
