// Packing, one tile of 32 outputs after the other, a block at a time: an output's inputs of the block are one
// cache line or two, and the block stays in the first-level cache while it is filled.
#include "weights/pack.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <stdexcept>
#include <string>

#include "contract/float_formats.h"

namespace redoubt {
namespace {

constexpr const char* kNames[] = {"sym_int4", "asym_int4", "lut4", "int8", "fp16", "bf16", "fp32"};
constexpr int kLanes = 16;  // outputs of one 64-byte column

[[noreturn]] void reject(const std::string& message) { throw std::invalid_argument(message); }

// How many of a 16-output column's outputs are real: the rest is padding, all zero.
int real_lanes(const PackedMatrix& matrix, int32_t first_output) {
  const int64_t left = int64_t(matrix.rows) - first_output;
  return left >= kLanes ? kLanes : left > 0 ? int(left) : 0;
}

// Writes one group's 32 fp16 values (scales or minima) of a tile.
void pack_halves(const PackedMatrix& matrix, const uint16_t* values, int32_t first_output, int32_t block,
                 uint8_t* out) {
  const size_t groups = size_t(matrix.blocks());
  uint16_t halves[kTileOutputs] = {};
  for (int n = 0; n < kTileOutputs && first_output + n < matrix.rows; ++n) {
    halves[n] = values[size_t(first_output + n) * groups + size_t(block)];
  }
  std::memcpy(out, halves, sizeof halves);
}

// One block's codes of 16 outputs, 8 inputs a step. Returns the OR of all bytes, to find a code out of range.
uint64_t pack_nibbles(const uint8_t* codes, size_t stride, int lanes, int group, uint8_t* out) {
  uint64_t seen = 0;
  for (int lane = 0; lane < lanes; ++lane) {
    for (int kb = 0; kb < group / 8; ++kb) {
      uint32_t halves[2];
      std::memcpy(halves, codes + size_t(lane) * stride + size_t(kb) * 8, 8);
      seen |= halves[0] | halves[1];
      const uint32_t packed = halves[0] | halves[1] << 4;
      std::memcpy(out + kb * 128 + lane * 4, &packed, 4);
    }
  }
  return seen;
}

// The same for int8, 4 inputs a step. Returns nonzero bits where a code is 0.
uint32_t pack_bytes(const uint8_t* codes, size_t stride, int lanes, int group, uint8_t* out) {
  uint32_t zeros = 0;
  for (int lane = 0; lane < lanes; ++lane) {
    for (int kb = 0; kb < group / 4; ++kb) {
      uint32_t word;
      std::memcpy(&word, codes + size_t(lane) * stride + size_t(kb) * 4, 4);
      zeros |= (word - 0x01010101u) & ~word & 0x80808080u;
      std::memcpy(out + kb * 128 + lane * 4, &word, 4);
    }
  }
  return zeros;
}

}  // namespace

const char* weight_type_name(WeightType type) { return kNames[size_t(type)]; }

WeightType weight_type_from_name(std::string_view name) {
  for (size_t i = 0; i < std::size(kNames); ++i) {
    if (name == kNames[i]) return WeightType(i);
  }
  reject("unknown weight type '" + std::string(name) +
         "'; known: sym_int4, asym_int4, lut4, int8, fp16, bf16, fp32");
}

void check_packable(WeightType type, int64_t rows, int64_t cols, int64_t group) {
  const auto limit = int64_t(1) << 24;
  if (rows < 1 || rows > limit) reject("rows: " + std::to_string(rows) + " is not in 1 .. 2^24");
  if (cols < 1 || cols > limit) reject("cols: " + std::to_string(cols) + " is not in 1 .. 2^24");
  const PackedMatrix shape{.type = type};
  if (!shape.is_integer()) {
    if (group != 0)
      reject("group: " + std::to_string(group) + ", but " + weight_type_name(type) + " has none: 0");
    if (type == WeightType::kBf16 && cols % 2 != 0)
      reject("cols: " + std::to_string(cols) + " is odd; bf16 takes pairs");
    return;
  }
  if (group != 32 && group != 64 && group != 128)
    reject("group: " + std::to_string(group) + " is not 32, 64 or 128");
  if (cols % group != 0) {
    reject("cols: " + std::to_string(cols) + " is not a multiple of the group, " + std::to_string(group));
  }
}

void set_table(PackedMatrix& matrix, const std::vector<int64_t>& entries) {
  if (matrix.type != WeightType::kLut4) {
    if (!entries.empty()) reject(std::string("table: ") + weight_type_name(matrix.type) + " has none");
    return;
  }
  if (entries.size() != matrix.table.size()) {
    reject("table: " + std::to_string(entries.size()) + " entries, not 16");
  }
  for (size_t i = 0; i < entries.size(); ++i) {
    if (entries[i] < -127 || entries[i] > 127) {
      reject("table: " + std::to_string(entries[i]) + " is not in -127 .. 127");
    }
    matrix.table[i] = int8_t(entries[i]);
  }
}

void pack_int4(const PackedMatrix& matrix, const uint8_t* codes, const uint16_t* scales,
               const uint16_t* minima, uint8_t* out) {
  const size_t stride = size_t(matrix.cols);
  std::memset(out + matrix.tile_bytes() * size_t(matrix.tiles() - 1), 0, matrix.tile_bytes());
  uint64_t seen = 0;
  for (int32_t tile = 0; tile < matrix.tiles(); ++tile) {
    const int32_t first = tile * kTileOutputs;
    for (int32_t block = 0; block < matrix.blocks(); ++block, out += matrix.block_bytes()) {
      for (int column = 0; column < 2; ++column) {
        const int32_t output = first + column * kLanes;
        const int lanes = real_lanes(matrix, output);
        if (lanes == 0) continue;
        const uint8_t* source = codes + size_t(output) * stride + size_t(block) * size_t(matrix.group);
        seen |= pack_nibbles(source, stride, lanes, matrix.group, out + column * 64);
      }
      uint8_t* halves = out + code_bytes(matrix.type, matrix.group);
      pack_halves(matrix, scales, first, block, halves);
      if (matrix.type == WeightType::kAsymInt4) pack_halves(matrix, minima, first, block, halves + 64);
    }
  }
  if ((seen & 0xf0f0f0f0u) != 0) reject("codes: an int4 code is not in 0 .. 15");
}

void pack_int8(const PackedMatrix& matrix, const uint8_t* codes, const uint16_t* scales, uint8_t* out) {
  const size_t stride = size_t(matrix.cols);
  std::memset(out + matrix.tile_bytes() * size_t(matrix.tiles() - 1), 0, matrix.tile_bytes());
  uint32_t zeros = 0;
  for (int32_t tile = 0; tile < matrix.tiles(); ++tile) {
    const int32_t first = tile * kTileOutputs;
    for (int32_t block = 0; block < matrix.blocks(); ++block, out += matrix.block_bytes()) {
      for (int column = 0; column < 2; ++column) {
        const int32_t output = first + column * kLanes;
        const int lanes = real_lanes(matrix, output);
        if (lanes == 0) continue;
        const uint8_t* source = codes + size_t(output) * stride + size_t(block) * size_t(matrix.group);
        zeros |= pack_bytes(source, stride, lanes, matrix.group, out + column * 64);
      }
      pack_halves(matrix, scales, first, block, out + code_bytes(matrix.type, matrix.group));
    }
  }
  if (zeros != 0) reject("codes: an int8 code is 0, not in 1 .. 255");
}

void pack_float(const PackedMatrix& matrix, const float* values, uint8_t* out) {
  constexpr int kRun = 16;  // inputs of one output taken together: a cache line
  std::memset(out + matrix.tile_bytes() * size_t(matrix.tiles() - 1), 0, matrix.tile_bytes());
  for (int32_t tile = 0; tile < matrix.tiles(); ++tile, out += matrix.tile_bytes()) {
    const int32_t first = tile * kTileOutputs;
    for (int32_t begin = 0; begin < matrix.cols; begin += kRun) {
      const int32_t end = std::min(begin + kRun, matrix.cols);
      for (int n = 0; n < kTileOutputs && first + n < matrix.rows; ++n) {
        const float* row = values + size_t(first + n) * size_t(matrix.cols);
        for (int32_t k = begin; k < end; ++k) {
          if (matrix.type == WeightType::kBf16) {
            const uint16_t bits = float_to_bf16(row[k]);
            std::memcpy(out + size_t(k / 2) * 128 + size_t(n) * 4 + size_t(k % 2) * 2, &bits, 2);
          } else if (matrix.type == WeightType::kFp16) {
            const uint16_t bits = float_to_fp16(row[k]);
            std::memcpy(out + size_t(k) * 64 + size_t(n) * 2, &bits, 2);
          } else {
            std::memcpy(out + size_t(k) * 128 + size_t(n) * 4, &row[k], 4);
          }
        }
      }
    }
  }
}

}  // namespace redoubt
