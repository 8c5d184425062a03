// linear/bf16_amx-inl.h on emulated tiles and fp16 arithmetic, for tests on processors that have neither.
// Compiled with few optimizations (CMakeLists.txt), because it need not be fast.
#include <immintrin.h>

#include <algorithm>

#include "contract/kernel_table.h"
#include "linear/avx512.h"
#include "machine/thread_pool.h"
#include "simd/numbers.h"
#include "testing/emulated_fp16_lanes.h"
#include "testing/emulated_tiles.h"
#include "testing/tables.h"

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni,avx512bf16,fma,f16c")

namespace redoubt::amx_bf16 {
namespace {

#include "linear/bf16_amx-inl.h"

struct Emulation {
  using Tiles = EmulatedTiles;
  using Lanes = EmulatedFp16Lanes;
};

}  // namespace
}  // namespace redoubt::amx_bf16

#pragma GCC pop_options

namespace redoubt {

void fill_linear_amx_bf16_emulated(KernelTable& table) {
  table.round_rows = amx_bf16::round_rows;
  table.linear_bf16 = amx_bf16::linear_bf16<amx_bf16::Emulation>;
  table.gate_up_bf16 = amx_bf16::gate_up_bf16<amx_bf16::Emulation>;
}

}  // namespace redoubt
