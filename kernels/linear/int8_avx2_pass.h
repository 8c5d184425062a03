// The interface between linear/int8_avx2.cc, which loops over rows and tiles in passes, and the kernels of a
// pass, one for each type of weights.
#pragma once

#include "linear/avx2.h"

#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")

namespace redoubt::avx2 {

// Passes of several rows compute two columns of eight outputs at a time, so that sums stay in registers.
inline constexpr int kPairColumns = 2;

// Some groups of a tile times a few rows, whose inputs the kernel's `fill` has ordered.
struct Pass {
  const uint8_t* weights = nullptr;       // packed, of the first group
  const int8_t* inputs = nullptr;         // `input_bytes` for each input and row
  const int32_t* starts = nullptr;        // `starts_per_group` for each group and row
  const float* x_scales = nullptr;        // [group][row]
  const float* x_offsets = nullptr;       // [group][row]
  float (*sums)[kTileOutputs] = nullptr;  // [row], to which is added
  int groups = 0;
  const PackedMatrix* matrix = nullptr;  // whose tile it is
  bool ahead = false;                    // whether to prefetch the weights that follow
};
using PassKernel = void (*)(const Pass&);

// The kernels for one type of integer weights, number of terms and size of group.
struct IntegerKernels {
  int most_rows = 0;  // of a pass
  int input_bytes = 0;
  int starts_per_group = 0;
  // Orders the inputs of groups [first_group, first_group + groups) of rows [row, row + rows), one pass.
  void (*fill)(const QuantizedRows& x, int row, int rows, int first_group, int groups, int8_t* inputs,
               int32_t* starts) = nullptr;
  const PassKernel* by_rows = nullptr;  // indexed by the number of rows minus one
};

IntegerKernels linear_int4_kernels(WeightType type, int terms, int group);
IntegerKernels linear_bytes_kernels(WeightType type);

// Keeps the compiler from computing all products first and adding them up as a tree, for which there are not
// enough registers.
[[gnu::always_inline]] inline void keep_order(__m256i& sum) { __asm__("" : "+x"(sum)); }

// Prefetches for part `index` of `parts` of the block from `begin` to `end`. A whole block at once is more
// lines than the first-level cache can have in flight, so kernels prefetch a part before each pair of
// columns.
template <Prefetch kDistance>
[[gnu::always_inline]] inline void prefetch_part(const uint8_t* begin, const uint8_t* end, int index,
                                                 int parts) {
  const int64_t lines = (end - begin) / 64;
  prefetch_weights<kDistance>(begin + lines * index / parts * 64, begin + lines * (index + 1) / parts * 64);
}

}  // namespace redoubt::avx2

#pragma GCC pop_options
