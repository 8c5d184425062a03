// linear/int8_avx_vnni-inl.h in the encoding of AVX-512, for tests on processors that have only that
// encoding.
#include <immintrin.h>

#include "contract/kernel_table.h"
#include "linear/avx2.h"
#include "linear/row_passes.h"
#include "simd/inline.h"
#include "testing/tables.h"

#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")

namespace redoubt::avx_vnni {
namespace {

#include "linear/int8_avx_vnni-inl.h"

// sum += dot products of four unsigned codes and four signed inputs, lane by lane, on processors with AVX-512
// VNNI.
struct Evex {
  REDOUBT_INLINE static void add_dot(__m256i& sum_i32x8, __m256i codes_u8x32, __m256i inputs_i8x32) {
    __asm__("%{evex%} vpdpbusd %2, %1, %0" : "+x"(sum_i32x8) : "x"(codes_u8x32), "x"(inputs_i8x32));
  }
};

}  // namespace
}  // namespace redoubt::avx_vnni

#pragma GCC pop_options

namespace redoubt {

void fill_linear_avx_vnni_evex(KernelTable& table) {
  table.linear_int8 = avx_vnni::linear_int8<avx_vnni::Evex>;
}

}  // namespace redoubt
