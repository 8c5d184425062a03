// Fp16Lanes in plain C++, so that kernels that use it can be tested on processors without AVX512-FP16.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "contract/float_formats.h"

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw")

namespace redoubt {

struct EmulatedFp16Lanes {
  static __m512i multiply(__m512i a, __m512i b) { return multiply_add(a, b, _mm512_set1_epi16(-0x8000)); }
  [[gnu::noinline]] static __m512i multiply_add(__m512i a, __m512i b, __m512i c) {
    alignas(64) uint16_t x[32], y[32], z[32];
    _mm512_store_si512(x, a);
    _mm512_store_si512(y, b);
    _mm512_store_si512(z, c);
    for (int i = 0; i < 32; ++i) x[i] = fp16_multiply_add(x[i], y[i], z[i]);
    return _mm512_load_si512(x);
  }
};

}  // namespace redoubt

#pragma GCC pop_options
