// Int4 codes times int8 activations with AVX-512 without VNNI.
#include <immintrin.h>

#include <array>
#include <cstring>
#include <utility>

#include "contract/float_formats.h"
#include "linear/avx512.h"
#include "linear/int8_pass.h"
#include "simd/inline.h"
#include "simd/numbers.h"

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,fma,f16c")

namespace redoubt::avx512 {
namespace {
#include "simd/vector_avx512-inl.h"

#include "simd/dot_avx512-inl.h"

#include "linear/integers_avx512-inl.h"

#include "linear/int8_nibbles-inl.h"
}  // namespace
}  // namespace redoubt::avx512

#pragma GCC pop_options

namespace redoubt::avx512 {

IntegerKernels linear_int4_kernels(WeightType type, int terms, int group) {
  return int4_kernels(type, terms, group);
}

}  // namespace redoubt::avx512
