// What the vector tiers of the non-linear kernels have in common: the macro of their *-inl.h files, and the
// fillers of attention, which is compiled apart.
#pragma once

#include "contract/kernel_table.h"
#include "simd/numbers.h"

// Small functions on registers: their arguments must never go through memory.
#define REDOUBT_INLINE [[gnu::always_inline]] inline

namespace redoubt::avx2 {
void fill_attention(KernelTable& table);
}
namespace redoubt::avx512 {
void fill_attention(KernelTable& table);
}
