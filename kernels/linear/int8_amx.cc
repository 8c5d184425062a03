// Integer weights times int8 activations in AMX tiles: linear/int8_amx-inl.h has the kernels.
#include <immintrin.h>

#include <algorithm>
#include <array>
#include <utility>

#include "contract/kernel_table.h"
#include "linear/avx512_vnni.h"
#include "machine/thread_pool.h"
#include "simd/amx_tiles.h"

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,fma,f16c")

namespace redoubt::amx_int8 {
namespace {

#include "linear/int8_amx-inl.h"

}  // namespace
}  // namespace redoubt::amx_int8

#pragma GCC pop_options

namespace redoubt {

void fill_linear_amx_int8(KernelTable& table) { table.linear_int8 = amx_int8::linear_int8<AmxTiles, false>; }

}  // namespace redoubt
