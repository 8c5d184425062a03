// Gated DeltaNet on AVX2 and FMA; puts the tier's kernels in the table.
#include <immintrin.h>

#include <cmath>
#include <cstring>
#include <type_traits>

#include "contract/delta.h"
#include "contract/kernel_table.h"
#include "simd/inline.h"
#include "simd/numbers.h"

#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")

namespace redoubt::avx2 {
namespace {
#include "simd/vector_avx2-inl.h"

#include "simd/exp2-inl.h"

#include "simd/row-inl.h"

#include "ops/silu-inl.h"

#include "delta/page-inl.h"
}  // namespace
}  // namespace redoubt::avx2

#pragma GCC pop_options

namespace redoubt {

void fill_delta_avx2(KernelTable& table) {
  table.convolve_silu = avx2::convolve_silu;
  table.l2_normalize = avx2::l2_normalize;
  table.delta_page = avx2::delta_page;
}

}  // namespace redoubt
