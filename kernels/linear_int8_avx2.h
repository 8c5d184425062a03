// What the kernels of integer weights share that have AVX2's sixteen registers, with VNNI and without.
#pragma once

#include "linear_avx2.h"

#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")

namespace redoubt::avx2 {

inline constexpr int kPassRows = 4;     // of one term: two terms of a row count as two rows
inline constexpr int kStepInputs = 32;  // every group is a multiple

// Four int8 activations, in every lane.
[[gnu::always_inline]] inline __m256i broadcast_inputs(const int8_t* values) {
  int32_t word;
  __builtin_memcpy(&word, values, 4);
  return _mm256_set1_epi32(word);
}

// The inputs of a pass: the rows' first terms, then their second.
template <int kCount>
using Rows = const int8_t* [kCount];

using TileKernel = void (*)(const PackedMatrix&, const QuantizedRows&, const LinearOutput&, int tile,
                            int row);

// The kernels of one type: by rows less one, for one term and for two.
struct TileKernels {
  TileKernel one_term[kPassRows];
  TileKernel two_terms[kPassRows / 2];
};

// All rows through the kernels of the matrix' type, in passes of nearly the same size.
inline void multiply_tiles(const TileKernels& of_type, const PackedMatrix& w, const QuantizedRows& x,
                           const LinearOutput& y, int tile_begin, int tile_end) {
  const bool two_terms = x.low_values != nullptr;
  const TileKernel* kernels = two_terms ? of_type.two_terms : of_type.one_term;
  const int most = two_terms ? kPassRows / 2 : kPassRows, passes = (x.rows + most - 1) / most;
  for (int tile = tile_begin; tile < tile_end; ++tile) {
    for (int pass = 0; pass < passes; ++pass) {
      const int begin = x.rows * pass / passes, end = x.rows * (pass + 1) / passes;
      kernels[end - begin - 1](w, x, y, tile, begin);
    }
  }
}

}  // namespace redoubt::avx2

#pragma GCC pop_options
