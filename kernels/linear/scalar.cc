// The scalar tier of quantization and the linear kernels. It defines their results; contract/kernel_table.h
// gives the order of operations. Written to be read; the other tiers are written to be fast.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "contract/kernel_table.h"
#include "contract/linear.h"
#include "ops/scalar.h"

namespace redoubt::scalar {
namespace {

// One group of inputs for a tile of 32 outputs, as contract/packed_matrix.h lays it out.
struct Block {
  const PackedMatrix& matrix;
  const uint8_t* bytes;

  bool is_int8() const { return matrix.type == WeightType::kInt8; }

  // What multiplies input k in the integer sum.
  int factor(int lane, int k) const {
    const int q = code(lane, k);
    return matrix.type == WeightType::kLut4 ? matrix.table[size_t(q)] + 128 : q;
  }
  // The unsigned code of output `lane` of the tile and input k of the group.
  int code(int lane, int k) const {
    const int column = lane / 16;
    if (is_int8()) return bytes[(k / 4) * 128 + column * 64 + (lane % 16) * 4 + k % 4];
    const int pair = bytes[(k / 8) * 128 + column * 64 + (lane % 16) * 4 + k % 4];
    return k % 8 < 4 ? pair & 15 : pair >> 4;
  }
  float scale(int lane) const { return fp16_to_float(scale_bits(lane)); }
  float minimum(int lane) const { return fp16_to_float(minimum_bits(lane)); }
  uint16_t scale_bits(int lane) const { return half(code_bytes(matrix.type, matrix.group), lane); }
  uint16_t minimum_bits(int lane) const {  // asym_int4
    return half(code_bytes(matrix.type, matrix.group) + size_t(kTileOutputs) * 2, lane);
  }

  uint16_t half(size_t offset, int lane) const {
    uint16_t bits;
    std::memcpy(&bits, bytes + offset + size_t(lane) * 2, 2);
    return bits;
  }
};

float dequantize(const PackedMatrix& w, const uint8_t* tile, int lane, int k) {
  if (w.type == WeightType::kFp32) {
    float value;
    std::memcpy(&value, tile + size_t(k) * 128 + size_t(lane) * 4, 4);
    return value;
  }
  if (w.type == WeightType::kFp16) {
    uint16_t bits;
    std::memcpy(&bits, tile + size_t(k) * 64 + size_t(lane) * 2, 2);
    return fp16_to_float(bits);
  }
  if (w.type == WeightType::kBf16) {
    uint16_t bits;
    std::memcpy(&bits, tile + size_t(k / 2) * 128 + size_t(lane) * 4 + size_t(k % 2) * 2, 2);
    return bf16_to_float(bits);
  }
  const Block block{w, tile + w.block_bytes() * size_t(k / w.group)};
  const int code = block.code(lane, k % w.group);
  switch (w.type) {
    case WeightType::kSymInt4:
      return block.scale(lane) * float(code - 8);
    case WeightType::kAsymInt4:
      return std::fma(block.scale(lane), float(code), block.minimum(lane));
    case WeightType::kLut4:
      return block.scale(lane) * float(w.table[size_t(code)]);
    case WeightType::kInt8:
      return block.scale(lane) * float(code - 128);
    case WeightType::kFp16:
    case WeightType::kBf16:
    case WeightType::kFp32:
      break;
  }
  std::abort();
}

void write(const LinearOutput& y, int row, int32_t n, float sum) {
  float* out = y.values + row * y.stride + n;
  if (y.bias != nullptr) sum += y.bias[n];
  *out = y.accumulate ? sum + *out : sum;
}

// Quantizes group `at` of `out`, counted from the first row's first group.
void quantize_group(const float* x, const QuantizedRows& out, int64_t at) {
  float largest = 0.0f;
  for (int k = 0; k < out.group; ++k) {
    const float magnitude = std::fabs(x[k]);
    if (magnitude > largest) largest = magnitude;
  }
  const bool zero = largest < kSmallestQuantized;
  const float steps = out.low_values == nullptr ? 127.0f : 32512.0f;
  const float inverse = zero ? 0.0f : steps / largest;
  int32_t sum = 0;
  for (int k = 0; k < out.group; ++k) {
    const auto n = int32_t(std::lrintf(x[k] * inverse));
    const int32_t high = out.low_values == nullptr ? n : (n + 128) >> 8;
    out.values[at * out.group + k] = int8_t(high);
    if (out.low_values != nullptr) out.low_values[at * out.group + k] = int8_t(n - 256 * high);
    sum += n;
  }
  out.scales[at] = zero ? 0.0f : largest / steps;
  out.starts[at] = -8 * sum;
  out.offsets[at] = float(sum) * out.scales[at];
}

void quantize_rows(const FloatRows& x, const QuantizedRows& out, int row, int col) {
  for (int r = 0; r < x.rows; ++r) {
    const int64_t first = (int64_t(row + r) * out.cols + col) / out.group;
    for (int j = 0; j < x.cols / out.group; ++j) {
      quantize_group(x.values + r * x.stride + j * out.group, out, first + j);
    }
  }
}

// One output of one row: all its groups in ascending order.
float dot_int8(const PackedMatrix& w, const uint8_t* tile, int lane, const QuantizedRows& x, int row) {
  const int groups = w.cols / w.group;
  float acc = 0.0f;
  for (int j = 0; j < groups; ++j) {
    const Block block{w, tile + w.block_bytes() * size_t(j)};
    const int64_t at = int64_t(row) * groups + j;
    int32_t dot = 0;
    for (int k = 0; k < w.group; ++k) dot += block.factor(lane, k) * x.integer(at * w.group + k);
    if (w.type == WeightType::kAsymInt4) {
      acc = std::fma(float(dot) * x.scales[at], block.scale(lane), acc);
      acc = std::fma(x.offsets[at], block.minimum(lane), acc);
    } else {
      const int32_t start = x.starts[at] * (w.type == WeightType::kSymInt4 ? 1 : 16);
      acc = std::fma(float(dot + start) * x.scales[at], block.scale(lane), acc);
    }
  }
  return acc;
}

// The place of the k-th of 32 inputs in Bf16Rows.
int place_in_step(int k) { return k / 8 * 8 + k % 2 * 4 + k % 8 / 2; }

void round_rows(const FloatRows& x, const Bf16Rows& out, int row, int col) {
  constexpr int kInputs = Bf16Rows::kStepInputs;
  for (int r = 0; r < x.rows; ++r) {
    for (int k = 0; k < x.cols; ++k) {
      float scaled = x.values[r * x.stride + k] * kBf16InputFactor;
      if (std::fabs(scaled) > kLargestBf16) scaled = std::copysign(kLargestBf16, scaled);
      out.row(row + r, (col + k) / kInputs)[place_in_step(k % kInputs)] = float_to_bf16(scaled);
    }
  }
}

// kBf16WeightFactor times an fp16 number, which is clamped first.
uint16_t clamped_factor(uint16_t half, uint16_t limit) {
  const uint16_t magnitude = std::min<uint16_t>(half & 0x7fffu, limit);
  const auto clamped = uint16_t((half & 0x8000u) | magnitude);
  return double_to_fp16(double(fp16_to_float(clamped)) * kBf16WeightFactor);
}

// A weight as linear_bf16 multiplies it. k: the input.
float bf16_weight(const PackedMatrix& w, const uint8_t* tile, int lane, int k) {
  const Block block{w, tile + w.block_bytes() * size_t(k / w.group)};
  const int code = block.code(lane, k % w.group);
  const uint16_t scale = clamped_factor(block.scale_bits(lane), largest_bf16_scale(w.type));
  const auto half = [](int value) { return double_to_fp16(double(value)); };
  uint16_t weight;
  if (w.type == WeightType::kAsymInt4) {
    const uint16_t minimum = clamped_factor(block.minimum_bits(lane), kLargestBf16Minimum);
    weight = fp16_multiply_add(scale, half(code - 8), fp16_multiply_add(scale, half(8), minimum));
  } else {
    const int value = w.type == WeightType::kSymInt4 ? code - 8
                      : w.type == WeightType::kInt8  ? code - 128
                                                     : w.table[size_t(code)];
    weight = double_to_fp16(double(fp16_to_float(scale)) * value);
  }
  return bf16_to_float(uint16_t((weight & 0x8000u) | (weight & 0x7fffu) >> 3));
}

// Adds the products of one output and one row to acc. weights: [x.cols], in the order of x.
float add_products_bf16(float acc, const float* weights, const Bf16Rows& x, int row) {
  acc = flush_subnormal(acc);
  for (int first = 0; first < x.cols; first += Bf16Rows::kStepInputs) {
    const uint16_t* inputs = x.row(row, first / Bf16Rows::kStepInputs);
    float sums[2] = {};  // of even places and of odd
    for (int k = 0; k < Bf16Rows::kStepInputs; ++k) {
      sums[k % 2] = flush_subnormal(std::fma(weights[first + k], bf16_to_float(inputs[k]), sums[k % 2]));
    }
    acc = flush_subnormal(acc + flush_subnormal(sums[0] + sums[1]));
  }
  return acc;
}

float dot_fp32(const PackedMatrix& w, const uint8_t* tile, int lane, const float* x) {
  float acc = 0.0f;
  for (int k = 0; k < w.cols; ++k) acc = std::fma(x[k], dequantize(w, tile, lane, k), acc);
  return acc;
}

void linear_int8(const PackedMatrix& w, const QuantizedRows& x, const LinearOutput& y, int tile_begin,
                 int tile_end) {
  for (int tile = tile_begin; tile < tile_end; ++tile) {
    for (int row = 0; row < x.rows; ++row) {
      for (int lane = 0; lane < kTileOutputs && tile * kTileOutputs + lane < w.rows; ++lane) {
        write(y, row, tile * kTileOutputs + lane, dot_int8(w, w.tile(tile), lane, x, row));
      }
    }
  }
}

void linear_bf16(const PackedMatrix& w, const Bf16Rows& x, const LinearOutput& y, int tile_begin,
                 int tile_end) {
  std::vector<float> weights(size_t(w.cols));
  for (int tile = tile_begin; tile < tile_end; ++tile) {
    for (int lane = 0; lane < kTileOutputs && tile * kTileOutputs + lane < w.rows; ++lane) {
      const int n = tile * kTileOutputs + lane;
      for (int k = 0; k < w.cols; ++k) {
        const int first = k / Bf16Rows::kStepInputs * Bf16Rows::kStepInputs;
        weights[size_t(first + place_in_step(k - first))] =
            flush_subnormal(bf16_weight(w, w.tile(tile), lane, k));
      }
      for (int row = 0; row < x.rows; ++row) {
        float& out = y.values[row * y.stride + n];
        float acc = y.accumulate ? out : 0.0f;
        if (y.bias != nullptr) acc += y.bias[n];
        out = add_products_bf16(acc, weights.data(), x, row);
      }
    }
  }
}

void gate_up_bf16(const GateUp& layer, const Bf16Rows& x, const Bf16Rows& out, int col) {
  const auto &gates = layer.gates, &ups = layer.ups;
  linear_bf16(layer.gate, x, gates, 0, layer.gate.tiles());
  linear_bf16(layer.up, x, ups, 0, layer.up.tiles());
  for (int row = 0; row < x.rows; ++row) {
    float* const gate = gates.values + row * gates.stride;
    activate<Activation::kSilu>(gate, ups.values + row * ups.stride, layer.gate.rows, gate);
  }
  round_rows({gates.values, gates.stride, x.rows, layer.gate.rows}, out, 0, col);
}

void linear_fp32(const PackedMatrix& w, const FloatRows& x, const LinearOutput& y, int tile_begin,
                 int tile_end) {
  for (int tile = tile_begin; tile < tile_end; ++tile) {
    for (int row = 0; row < x.rows; ++row) {
      for (int lane = 0; lane < kTileOutputs && tile * kTileOutputs + lane < w.rows; ++lane) {
        write(y, row, tile * kTileOutputs + lane, dot_fp32(w, w.tile(tile), lane, x.values + row * x.stride));
      }
    }
  }
}

void dequantize_row(const PackedMatrix& w, int32_t row, float* out) {
  const uint8_t* tile = w.tile(row / kTileOutputs);
  for (int k = 0; k < w.cols; ++k) out[k] = dequantize(w, tile, row % kTileOutputs, k);
}

}  // namespace
}  // namespace redoubt::scalar

namespace redoubt {

void fill_linear_scalar(KernelTable& table) {
  table.quantize_rows = scalar::quantize_rows;
  table.linear_int8 = scalar::linear_int8;
  table.round_rows = scalar::round_rows;
  table.linear_bf16 = scalar::linear_bf16;
  table.gate_up_bf16 = scalar::gate_up_bf16;
  table.linear_fp32 = scalar::linear_fp32;
  table.dequantize_row = scalar::dequantize_row;
}

}  // namespace redoubt
