// What the kernel of gated causal convolutions takes (LFM2): channel by channel, with x = before * values,
//   output = behind * (bias + the sum over taps, oldest token first, of taps * x)
#pragma once

#include <cstdint>

namespace redoubt {

// The most tokens that a convolution sees, its own included.
inline constexpr int kMostTaps = 8;

// Some channels of one sequence's rows in a step.
struct GatedRows {
  const float* before = nullptr;  // row r: before + r * stride
  const float* behind = nullptr;  // likewise
  float* values = nullptr;        // likewise; becomes x
  int64_t stride = 0;
  const float* history[kMostTaps - 1] = {};  // x of the taps - 1 rows before, oldest first; null: zeros
  const float* taps = nullptr;               // tap j: taps + j * tap_stride
  int64_t tap_stride = 0;
  const float* bias = nullptr;  // or null
  float* output = nullptr;      // row r: output + r * output_stride
  int64_t output_stride = 0;
  int32_t count = 0;
  int32_t channels = 0;
  int32_t tap_count = 0;
};

}  // namespace redoubt
