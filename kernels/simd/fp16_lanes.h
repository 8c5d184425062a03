// Arithmetic on 32 fp16 numbers with AVX512-FP16, which every processor with AMX has. Knows no kernel.
#pragma once

#include <immintrin.h>

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw")

namespace redoubt {

// Instructions are written as text: if the compiler were allowed to use them, it would do so where they are
// emulated, too.
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

}  // namespace redoubt

#pragma GCC pop_options
