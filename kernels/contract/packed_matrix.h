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
//   bf16: for kb in 0 .. cols/2: 32 outputs x 2 inputs of bf16, the input fastest (`cols` is even). group = 0
//   fp32: for k in 0 .. cols: 32 outputs of fp32. group = 0
//
// The codes are the *unsigned* operand of vpdpbusd; the activations, int8 by group, the signed one.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace redoubt {

enum class WeightType : uint8_t { kSymInt4, kAsymInt4, kLut4, kInt8, kBf16, kFp32 };

inline constexpr int kTileOutputs = 32;

// Bytes of one block: a group of inputs (integer types), two inputs (bf16) or one (fp32), for 32 outputs.
constexpr size_t packed_block_bytes(WeightType type, int32_t group) {
  switch (type) {
    case WeightType::kSymInt4:
    case WeightType::kLut4:
      return size_t(group) * 16 + 64;
    case WeightType::kAsymInt4:
      return size_t(group) * 16 + 128;
    case WeightType::kInt8:
      return size_t(group) * 32 + 64;
    case WeightType::kBf16:
    case WeightType::kFp32:
      return 128;
  }
  return 0;
}

struct PackedMatrix {
  WeightType type = WeightType::kFp32;
  int32_t rows = 0;                // outputs
  int32_t cols = 0;                // inputs
  int32_t group = 0;               // inputs that share a scale; 0 for bf16 and fp32
  const uint8_t* data = nullptr;   // tiles() * tile_bytes() bytes, 64-byte aligned
  std::array<int8_t, 16> table{};  // lut4

  bool is_integer() const { return type <= WeightType::kInt8; }
  int32_t tiles() const { return (rows + kTileOutputs - 1) / kTileOutputs; }
  size_t block_bytes() const { return packed_block_bytes(type, group); }
  int32_t blocks() const { return is_integer() ? cols / group : type == WeightType::kBf16 ? cols / 2 : cols; }
  size_t tile_bytes() const { return block_bytes() * size_t(blocks()); }
  size_t bytes() const { return tile_bytes() * size_t(tiles()); }
  const uint8_t* tile(int32_t t) const { return data + tile_bytes() * size_t(t); }
};

}  // namespace redoubt
