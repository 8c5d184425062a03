// Arithmetic on 32 fp16 numbers: AVX512-FP16's, which every processor with AMX has, and the same emulated, so
// that a kernel written once for both can be tested on other processors. Knows no kernel.
#pragma once

#include <immintrin.h>

#include <cmath>
#include <cstdint>

#include "contract/float_formats.h"

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw")

namespace redoubt {

// As text: to grant the instructions to the compiler would be to let it use them where they are emulated.
struct Fp16Lanes {
  [[gnu::always_inline]] static __m512i multiply(__m512i a, __m512i b) {
    __m512i product;
    __asm__("vmulph %2, %1, %0" : "=v"(product) : "v"(a), "v"(b));
    return product;
  }
  // a * b + c, rounded once.
  [[gnu::always_inline]] static __m512i multiply_add(__m512i a, __m512i b, __m512i c) {
    __asm__("vfmadd213ph %2, %1, %0" : "+v"(a) : "v"(b), "v"(c));
    return a;
  }
};

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
