// Arguments of linear kernels: activations in the forms that are multiplied, and outputs. Knows no kernel and
// no tier.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "contract/packed_matrix.h"

namespace redoubt {

// The forms of activations: QuantizedRows of one term or two, Bf16Rows, FloatRows.
enum class Activations { kInt8, kInt8TwoTerms, kBf16, kFp32 };

// Activations quantized by group, as every linear kernel of integer weights takes them: x = d * n, where the
// integer n is one int8 term or two:
//   one:  n = q            d = max|x| / 127     n = round_to_nearest_even(x * (127 / max|x|))
//   two:  n = 256 q + l    d = max|x| / 32512   n = round_to_nearest_even(x * (32512 / max|x|)),
//         q in -127 .. 127, l in -128 .. 127
// Two terms cost up to twice the multiplications, but weights are read once, and the rounding error is a
// 256th. All is 0 where max|x| < kSmallestQuantized, so that neither quotient leaves the normal range. The
// sum s of a group's n is kept in the two forms that the kernels take it in.
struct QuantizedRows {
  int8_t* values = nullptr;      // [rows][cols], q
  int8_t* low_values = nullptr;  // [rows][cols], l; null: one term
  float* scales = nullptr;       // [rows][cols / group], d
  int32_t* starts = nullptr;     // [rows][cols / group], -8 s: sym_int4's zero point in the sum of products
  float* offsets = nullptr;      // [rows][cols / group], float(s) * d: what multiplies asym_int4's minimum
  int32_t rows = 0;
  int32_t cols = 0;
  int32_t group = 0;

  // n, at an index into the values.
  int32_t integer(int64_t at) const {
    return low_values == nullptr ? values[at] : 256 * values[at] + low_values[at];
  }
  // Rows [begin, end) alone.
  QuantizedRows part(int32_t begin, int32_t end) const {
    const int64_t value = int64_t(begin) * cols, of_group = int64_t(begin) * (cols / group);
    return {.values = values + value,
            .low_values = low_values == nullptr ? nullptr : low_values + value,
            .scales = scales + of_group,
            .starts = starts + of_group,
            .offsets = offsets + of_group,
            .rows = end - begin,
            .cols = cols,
            .group = group};
  }
};

// Activations as AMX's tiles take them: x * kBf16InputFactor, clamped to +-kLargestBf16, rounded to bf16 (to
// nearest even). In each eight inputs the even ones come first. Rows lie in blocks of one height, at most 16.
// The last block may have fewer rows; the rest of it is never read.
struct Bf16Rows {
  uint16_t* values = nullptr;  // [blocks][cols / kStepInputs][height][kStepInputs]
  int32_t rows = 0;
  int32_t cols = 0;    // a multiple of kStepInputs
  int32_t height = 1;  // of a block

  static constexpr int kStepInputs = 32;
  static constexpr int kMostHeight = 16;

  Bf16Rows() = default;
  Bf16Rows(uint16_t* values, int32_t rows, int32_t cols) : values(values), rows(rows), cols(cols) {
    const int32_t count = std::max(1, (rows + kMostHeight - 1) / kMostHeight);
    height = std::max(1, (rows + count - 1) / count);
  }

  int32_t blocks() const { return (rows + height - 1) / height; }
  // The rows of blocks [begin, end) alone, in blocks of the same height.
  Bf16Rows part(int32_t begin, int32_t end) const {
    Bf16Rows result = *this;
    result.values = step(begin, 0);
    result.rows = std::min(rows, end * height) - begin * height;
    return result;
  }
  // The inputs of a block's rows from kStepInputs * step on.
  uint16_t* step(int32_t block, int32_t step) const {
    return values + (int64_t(block) * (cols / kStepInputs) + step) * height * kStepInputs;
  }
  // The inputs of one row from kStepInputs * step on.
  uint16_t* row(int32_t row, int32_t step) const {
    return this->step(row / height, step) + row % height * kStepInputs;
  }
  // Values that at most `rows` rows take.
  static constexpr int64_t size(int64_t rows, int64_t cols) {
    return (rows + (rows + kMostHeight - 1) / kMostHeight) * cols;
  }
};

// linear_bf16 has a weight w as the bf16 number whose bits are those of fp16(f w), but for the last three of
// the mantissa, which are cut off: fp16's exponent in bf16's place stands for 2^-112 of it. So activations
// are multiplied by 2^112 / f, and by what the mean number, whose mantissa is 1 / ln 2, is to what cutting
// leaves of it: 7 / 16 of a last bit less. f is no power of two, so that scales of few bits don't stay such:
// the last bits of their products would not have that mean.
inline constexpr float kBf16WeightFactor = 32.0625f;
inline constexpr float kBf16InputFactor = 0x1p112f / kBf16WeightFactor * (1.0f + 0x7p-11f * 0.6931472f);
inline constexpr float kLargestBf16 = 0x1.fep127f;

// Scales and minima are clamped to these, given as fp16's bits, so that no weight becomes infinite:
// 255.375 times a code of -8 .. 7; of lut4 and int8, 15.9921875 times -127 .. 127; of asym_int4, 63.96875
// times -8 .. 7, and 511.75.
inline constexpr uint16_t largest_bf16_scale(WeightType type) {
  switch (type) {
    case WeightType::kSymInt4:
      return 0x5bfb;
    case WeightType::kAsymInt4:
      return 0x53ff;
    case WeightType::kLut4:
    case WeightType::kInt8:
      return 0x4bff;
    case WeightType::kFp16:
    case WeightType::kBf16:
    case WeightType::kFp32:
      break;
  }
  std::abort();
}
inline constexpr uint16_t kLargestBf16Minimum = 0x5fff;

struct FloatRows {
  const float* values = nullptr;  // [rows], `stride` floats apart
  int64_t stride = 0;
  int32_t rows = 0;
  int32_t cols = 0;
};

// Where a linear kernel writes: y[r][n] = acc, plus bias[n] where there is one, plus y's old value if
// `accumulate` (linear_bf16 begins with these two). Padded outputs (n >= w.rows) are never written.
struct LinearOutput {
  float* values = nullptr;  // [rows], `stride` floats apart
  int64_t stride = 0;
  const float* bias = nullptr;  // [w.rows] or null
  bool accumulate = false;
  bool elsewhere = false;  // another core may have y's cache lines, so they are prefetched
};

// Gate and up of an MLP, of one type, group and shape without padded outputs. gates, ups: where their
// products may be kept meanwhile, and their biases; accumulate is false.
struct GateUp {
  PackedMatrix gate;
  PackedMatrix up;
  LinearOutput gates;
  LinearOutput ups;
};

}  // namespace redoubt
