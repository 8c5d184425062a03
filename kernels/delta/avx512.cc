// Gated DeltaNet on AVX-512 (F, BW, DQ, VL); puts the tier's kernels in the table.
#include <immintrin.h>

#include <cmath>
#include <cstring>
#include <type_traits>

#include "contract/delta.h"
#include "contract/kernel_table.h"
#include "simd/inline.h"
#include "simd/numbers.h"

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")

namespace redoubt::avx512 {
namespace {
#include "simd/vector_avx512-inl.h"

#include "simd/exp2-inl.h"

#include "simd/row-inl.h"

#include "ops/silu-inl.h"

#include "delta/page-inl.h"
}  // namespace
}  // namespace redoubt::avx512

#pragma GCC pop_options

namespace redoubt {

void fill_delta_avx512(KernelTable& table) {
  table.convolve_silu = avx512::convolve_silu;
  table.l2_normalize = avx512::l2_normalize;
  table.delta_page = avx512::delta_page;
}

}  // namespace redoubt
