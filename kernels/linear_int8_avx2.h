// What the kernels of integer weights share that have AVX2's sixteen registers, with VNNI and without.
#pragma once

#include "linear_avx2.h"
#include "row_passes.h"

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

}  // namespace redoubt::avx2

#pragma GCC pop_options
