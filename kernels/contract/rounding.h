// Arguments of the kernels that choose 4-bit codes: one group of a matrix' inputs, for all of its rows.
// Arrays are [inputs][rows]. The formulas are those of quant/methods/gptq.py and descent.py.
#pragma once

#include <cstdint>

namespace redoubt {

inline constexpr int kLevels = 16;
// Scratch floats of both kernels per input of the group.
inline constexpr int kRoundingScratchFloats = 80;

// The values scale * level + minimum. The code of w is that of the nearest level to x = (w - minimum) * r,
// with r = 1 / scale, or 0 if scale is 0: the number of middles up to x.
struct LevelGrid {
  float levels[kLevels];       // rising
  float middles[kLevels - 1];  // between each two
  bool is_even;                // levels are one apart: ties go to the even level instead
};

struct GroupRounding {
  LevelGrid grid;
  int inputs = 0;
  int64_t rows = 0;
  int candidates = 0;
  const float* weights = nullptr;  // [inputs][rows]
  const float* wanted = nullptr;   // [inputs][rows]: weights plus what earlier groups' errors ask for
  const float* feedback =
      nullptr;  // [inputs][inputs]: [k][i], i < k: how much of input i's error k makes up for
  const float* power = nullptr;   // [inputs]: what an input's own rounding error costs
  const float* scales = nullptr;  // [candidates][rows]
  const float* minima = nullptr;  // [candidates][rows]
  float* scratch = nullptr;       // [inputs * kRoundingScratchFloats], 64-byte aligned
  int32_t* best = nullptr;        // [rows]: the candidate with the least error, of equals the first
  uint8_t* codes = nullptr;       // [inputs][rows]
  float* errors = nullptr;        // [inputs][rows]: weights less their values
};

struct GroupDescent {
  LevelGrid grid;
  int inputs = 0;
  int64_t rows = 0;
  const float* own = nullptr;     // [inputs][inputs], symmetric: the moments of the group's inputs
  const float* pull = nullptr;    // [inputs][rows]: minus half the gradient of the error
  const float* scales = nullptr;  // [rows]
  const float* minima = nullptr;  // [rows]
  float* scratch = nullptr;       // as above
  uint8_t* codes = nullptr;       // [inputs][rows], before and after
  float* changes = nullptr;       // [inputs][rows]: of the values
};

}  // namespace redoubt
