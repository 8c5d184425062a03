// One weight matrix in the packed layout: the one layout that every tier reads in place from the mapped file.
//
// A linear layer computes y[n] = sum_k W[n][k] x[k]. W has `rows` outputs and `cols` inputs. Outputs are cut
// into tiles of 32 (the last tile is padded with outputs whose codes and scales are zero); a tile's blocks
// follow each other along k, so one output tile is one contiguous stream, and every block is a multiple of 64
// bytes.
//
//   sym_int4, asym_int4, lut4: one block per group of `group` inputs (32, 64 or 128):
//     for kb in 0 .. group/8, for c in 0 .. 2 (which 16 outputs): 64 bytes, where
//       byte[4*lane + i] = q[n][8*kb + i] | q[n][8*kb + 4 + i] << 4,   n = 32*tile + 16*c + lane, i in 0 .. 4
//     then 32 fp16 scales d[n]; then, asym_int4 only, 32 fp16 minima m[n].
//     sym_int4:  w = d * (q - 8)          asym_int4: w = d * q + m           (q in 0 .. 15)
//     lut4:      w = d * table[q], sixteen integers in -127 .. 127 for the whole matrix, outside its bytes
//   int8: one block per group: for kb in 0 .. group/4, for c in 0 .. 2: 64 bytes, where
//       byte[4*lane + i] = u[n][4*kb + i];  then 32 fp16 scales.            w = d * (u - 128)   (u in 1 ..
//       255)
//   fp16: for k in 0 .. cols: 32 outputs of fp16. group = 0
//   bf16: for kb in 0 .. cols/2: 32 outputs x 2 inputs of bf16, the input fastest (`cols` is even). group = 0
//   fp32: for k in 0 .. cols: 32 outputs of fp32. group = 0
//
// The codes are the *unsigned* operand of vpdpbusd; the activations, int8 by group, the signed one.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <type_traits>

namespace redoubt {

// Every choice by type, here and in with_integer_type, is a switch without default, so that a new type does
// not compile until each choice handles it.
enum class WeightType : uint8_t { kSymInt4, kAsymInt4, kLut4, kInt8, kFp16, kBf16, kFp32 };

inline constexpr int kTileOutputs = 32;

// Whether weights are codes of groups that share a scale.
constexpr bool is_integer_type(WeightType type) {
  switch (type) {
    case WeightType::kSymInt4:
    case WeightType::kAsymInt4:
    case WeightType::kLut4:
    case WeightType::kInt8:
      return true;
    case WeightType::kFp16:
    case WeightType::kBf16:
    case WeightType::kFp32:
      return false;
  }
  std::abort();
}

// Bytes of a block's weights, which come first: a group of inputs (integer types), two inputs (bf16) or one
// (fp16, fp32), for 32 outputs.
constexpr size_t code_bytes(WeightType type, int32_t group) {
  switch (type) {
    case WeightType::kSymInt4:
    case WeightType::kAsymInt4:
    case WeightType::kLut4:
      return size_t(group) * (kTileOutputs / 2);
    case WeightType::kInt8:
      return size_t(group) * kTileOutputs;
    case WeightType::kFp16:
      return 64;
    case WeightType::kBf16:
    case WeightType::kFp32:
      return 128;
  }
  std::abort();
}

// Bytes of the fp16 numbers that follow: scales, then asym_int4's minima.
constexpr size_t scale_bytes(WeightType type) {
  switch (type) {
    case WeightType::kSymInt4:
    case WeightType::kLut4:
    case WeightType::kInt8:
      return 2 * kTileOutputs;
    case WeightType::kAsymInt4:
      return 4 * kTileOutputs;
    case WeightType::kFp16:
    case WeightType::kBf16:
    case WeightType::kFp32:
      return 0;
  }
  std::abort();
}

constexpr size_t packed_block_bytes(WeightType type, int32_t group) {
  return code_bytes(type, group) + scale_bytes(type);
}

template <WeightType kType>
using WeightTypeConstant = std::integral_constant<WeightType, kType>;

// Returns work(WeightTypeConstant) for an integer type. Another type is a caller's mistake and ends the
// process.
template <typename Work>
decltype(auto) with_integer_type(WeightType type, const Work& work) {
  switch (type) {
    case WeightType::kSymInt4:
      return work(WeightTypeConstant<WeightType::kSymInt4>());
    case WeightType::kAsymInt4:
      return work(WeightTypeConstant<WeightType::kAsymInt4>());
    case WeightType::kLut4:
      return work(WeightTypeConstant<WeightType::kLut4>());
    case WeightType::kInt8:
      return work(WeightTypeConstant<WeightType::kInt8>());
    case WeightType::kFp16:
    case WeightType::kBf16:
    case WeightType::kFp32:
      break;
  }
  std::abort();
}

// Does the same for every type.
template <typename Work>
decltype(auto) with_weight_type(WeightType type, const Work& work) {
  switch (type) {
    case WeightType::kFp16:
      return work(WeightTypeConstant<WeightType::kFp16>());
    case WeightType::kBf16:
      return work(WeightTypeConstant<WeightType::kBf16>());
    case WeightType::kFp32:
      return work(WeightTypeConstant<WeightType::kFp32>());
    case WeightType::kSymInt4:
    case WeightType::kAsymInt4:
    case WeightType::kLut4:
    case WeightType::kInt8:
      break;
  }
  return with_integer_type(type, work);
}

struct PackedMatrix {
  WeightType type = WeightType::kFp32;
  int32_t rows = 0;                // outputs
  int32_t cols = 0;                // inputs
  int32_t group = 0;               // inputs that share a scale; 0 for floats
  const uint8_t* data = nullptr;   // tiles() * tile_bytes() bytes, 64-byte aligned
  std::array<int8_t, 16> table{};  // lut4

  bool is_integer() const { return is_integer_type(type); }
  int32_t tiles() const { return (rows + kTileOutputs - 1) / kTileOutputs; }
  size_t block_bytes() const { return packed_block_bytes(type, group); }
  int32_t blocks() const { return is_integer() ? cols / group : type == WeightType::kBf16 ? cols / 2 : cols; }
  size_t tile_bytes() const { return block_bytes() * size_t(blocks()); }
  size_t bytes() const { return tile_bytes() * size_t(tiles()); }
  const uint8_t* tile(int32_t t) const { return data + tile_bytes() * size_t(t); }
};

}  // namespace redoubt
