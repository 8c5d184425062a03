// Between linear/int8_avx2.cc, which takes rows through tiles in passes, and the kernels of a pass by type of
// weights.
#pragma once

#include "linear/avx2.h"

#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")

namespace redoubt::avx2 {

// Several rows take two columns of eight outputs at a time, whose sums stay in registers.
inline constexpr int kPairColumns = 2;

// Some groups of a tile times a few rows, whose inputs a kernel's own `fill` has put in order.
struct Pass {
  const uint8_t* weights = nullptr;       // packed, from the first group on
  const int8_t* inputs = nullptr;         // `input_bytes` for each input and row
  const int32_t* starts = nullptr;        // `starts_per_group` for each group and row
  const float* x_scales = nullptr;        // [group][row]
  const float* x_offsets = nullptr;       // [group][row]
  float (*sums)[kTileOutputs] = nullptr;  // [row], to which is added
  int groups = 0;
  const PackedMatrix* matrix = nullptr;  // whose tile it is
  bool ahead = false;                    // whether to ask for what follows the weights: it was not read yet
};
using PassKernel = void (*)(const Pass&);

// What there is for one type of integer weights, number of terms and group.
struct IntegerKernels {
  int most_rows = 0;  // of a pass
  int input_bytes = 0;
  int starts_per_group = 0;
  // Groups [first_group, first_group + groups) of rows [row, row + rows), which are a pass'.
  void (*fill)(const QuantizedRows& x, int row, int rows, int first_group, int groups, int8_t* inputs,
               int32_t* starts) = nullptr;
  const PassKernel* by_rows = nullptr;  // less one
};

IntegerKernels linear_int4_kernels(WeightType type, int terms, int group);
IntegerKernels linear_bytes_kernels(WeightType type);

// Keeps the compiler from making all products first and adding them up as a tree, for which there are not the
// registers.
[[gnu::always_inline]] inline void keep_order(__m256i& sum) { __asm__("" : "+x"(sum)); }

// Asks for what follows part `index` of `parts` of a block, from `begin` to `end`. Parts are asked for
// between columns, as all of it at once is more lines than the first-level cache can wait for: on Zen 3 4
// rows times weights in memory take 0.95 to 0.96 of the time with groups of 64 int4 weights, 0.81 with 64 of
// int8.
template <Prefetch kDistance>
[[gnu::always_inline]] inline void prefetch_part(const uint8_t* begin, const uint8_t* end, int index,
                                                 int parts) {
  const int64_t lines = (end - begin) / 64;
  prefetch_weights<kDistance>(begin + lines * index / parts * 64, begin + lines * (index + 1) / parts * 64);
}

}  // namespace redoubt::avx2

#pragma GCC pop_options
