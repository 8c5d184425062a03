// The choice of codes on AVX2.
#include <cstdint>

#include "contract/kernel_table.h"
#include "contract/rounding.h"
#include "simd/inline.h"

#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")

namespace redoubt::avx2 {
namespace {
#include "rounding/lanes-inl.h"
}  // namespace
}  // namespace redoubt::avx2

#pragma GCC pop_options

namespace redoubt {

void fill_rounding_avx2(KernelTable& table) {
  table.round_group = avx2::round_group;
  table.descend_group = avx2::descend_group;
}

}  // namespace redoubt
