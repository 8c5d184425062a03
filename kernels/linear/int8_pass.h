// The interface between linear/int8_chunks-inl.h, which loops over rows and tiles in passes, and the kernels
// of a pass, one for each type of weights: with AVX2, and with AVX-512 without VNNI. Knows no instruction
// set.
#pragma once

#include <cstdint>

#include "contract/linear.h"
#include "machine/weight_stream.h"

namespace redoubt {

// Some groups of a tile times a few rows, whose inputs the kernel's `fill` has ordered.
struct IntegerPass {
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
using IntegerPassKernel = void (*)(const IntegerPass&);

// The kernels for one type of integer weights, number of terms and size of group.
struct IntegerKernels {
  int most_rows = 0;  // of a pass
  int input_bytes = 0;
  int starts_per_group = 0;
  // Orders the inputs of groups [first_group, first_group + groups) of rows [row, row + rows), one pass.
  void (*fill)(const QuantizedRows& x, int row, int rows, int first_group, int groups, int8_t* inputs,
               int32_t* starts) = nullptr;
  const IntegerPassKernel* by_rows = nullptr;  // indexed by the number of rows minus one
};

namespace avx2 {
IntegerKernels linear_int4_kernels(WeightType type, int terms, int group);
IntegerKernels linear_bytes_kernels(WeightType type);
}  // namespace avx2
namespace avx512 {
IntegerKernels linear_int4_kernels(WeightType type, int terms, int group);
IntegerKernels linear_bytes_kernels(WeightType type);
}  // namespace avx512

// Prefetches for part `index` of `parts` of the block from `begin` to `end`. A whole block at once is more
// lines than the first-level cache can have in flight, so kernels prefetch a part before each pair of
// columns.
template <Prefetch kDistance>
[[gnu::always_inline]] inline void prefetch_part(const uint8_t* begin, const uint8_t* end, int index,
                                                 int parts) {
  const int64_t lines = (end - begin) / 64;
  prefetch_weights<kDistance>(begin + lines * index / parts * 64, begin + lines * (index + 1) / parts * 64);
}

}  // namespace redoubt
