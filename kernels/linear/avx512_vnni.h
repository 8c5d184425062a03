// Shared by the linear kernels of AVX-512 VNNI: the tier's functions and its instruction. The results are
// those of linear/scalar.cc, bit for bit.
#pragma once

#include <immintrin.h>

#include "linear/avx512.h"
#include "simd/inline.h"

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,fma,f16c")

namespace redoubt::avx512_vnni {

void linear_int8(const PackedMatrix& w, const QuantizedRows& x, const LinearOutput& y, int tile_begin,
                 int tile_end);
// As KernelTable::linear_int8. keeps: whether the first pass of many rows keeps unpacked int4 weights for the
// others.
void linear_int8(const PackedMatrix& w, const QuantizedRows& x, const LinearOutput& y, int tile_begin,
                 int tile_end, bool keeps);
// Whether this processor unpacks weights in the same pipes that multiply. Keeping them is faster then.
bool unpacks_in_multipliers();

// sum += dot products of four unsigned codes and four signed inputs, lane by lane. Inline assembly, because
// GCC 12 gives the intrinsic's result another register than its sum, and then spills when many sums are live.
REDOUBT_INLINE void add_dot(__m512i& sum_i32x16, __m512i codes_u8x64, __m512i inputs_i8x64) {
  __asm__("vpdpbusd %2, %1, %0" : "+v"(sum_i32x16) : "v"(codes_u8x64), "v"(inputs_i8x64));
}

}  // namespace redoubt::avx512_vnni

#pragma GCC pop_options
