// The choice of codes on AVX-512.
#include <cstdint>

#include "contract/kernel_table.h"
#include "contract/rounding.h"
#include "simd/inline.h"

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c,prefer-vector-width=512")

namespace redoubt::avx512 {
namespace {
#include "rounding/lanes-inl.h"
}  // namespace
}  // namespace redoubt::avx512

#pragma GCC pop_options

namespace redoubt {

void fill_rounding_avx512(KernelTable& table) {
  table.round_group = avx512::round_group;
  table.descend_group = avx512::descend_group;
}

}  // namespace redoubt
