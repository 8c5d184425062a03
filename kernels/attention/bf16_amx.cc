// Paged attention of prompts in AMX tiles: attention/bf16_amx-inl.h has the kernels.
#include <immintrin.h>

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "attention/score_modifier.h"
#include "contract/attention.h"
#include "contract/kernel_table.h"
#include "simd/amx_tiles.h"
#include "simd/inline.h"
#include "simd/numbers.h"

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512bf16,avx2,fma,f16c")

namespace redoubt::amx_bf16 {
namespace {

#include "attention/bf16_amx-inl.h"

}  // namespace
}  // namespace redoubt::amx_bf16

#pragma GCC pop_options

namespace redoubt {

void fill_attention_amx_bf16(KernelTable& table) { amx_bf16::fill<AmxTiles>(table); }

}  // namespace redoubt
