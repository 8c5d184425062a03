// attention/bf16_amx-inl.h on emulated tiles.
#include <immintrin.h>

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "attention/score_modifier.h"
#include "contract/attention.h"
#include "contract/kernel_table.h"
#include "simd/inline.h"
#include "simd/numbers.h"
#include "testing/emulated_tiles.h"
#include "testing/tables.h"

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512bf16,avx2,fma,f16c")

namespace redoubt::amx_bf16 {
namespace {

#include "attention/bf16_amx-inl.h"

}  // namespace
}  // namespace redoubt::amx_bf16

#pragma GCC pop_options

namespace redoubt {

void fill_attention_amx_bf16_emulated(KernelTable& table) { amx_bf16::fill<EmulatedTiles>(table); }

}  // namespace redoubt
