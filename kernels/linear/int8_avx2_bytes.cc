// Weights of 8 bits times int8 activations with AVX2.
#include <immintrin.h>

#include <array>
#include <cstring>
#include <utility>

#include "contract/float_formats.h"
#include "linear/avx2.h"
#include "linear/int8_pass.h"
#include "simd/inline.h"
#include "simd/numbers.h"

#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")

namespace redoubt::avx2 {
namespace {
#include "simd/vector_avx2-inl.h"

#include "linear/integers_avx2-inl.h"

#include "linear/int8_bytes-inl.h"
}  // namespace
}  // namespace redoubt::avx2

#pragma GCC pop_options

namespace redoubt::avx2 {

IntegerKernels linear_bytes_kernels(WeightType type) { return bytes_kernels(type); }

}  // namespace redoubt::avx2
