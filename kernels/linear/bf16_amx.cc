// Integer weights times bf16 activations in AMX tiles: linear/bf16_amx-inl.h has the kernels.
#include <immintrin.h>

#include <algorithm>

#include "contract/float_formats.h"
#include "contract/kernel_table.h"
#include "linear/avx512.h"
#include "machine/thread_pool.h"
#include "simd/amx_tiles.h"
#include "simd/fp16_lanes.h"
#include "simd/numbers.h"

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni,avx512bf16,fma,f16c")

namespace redoubt::amx_bf16 {
namespace {

#include "linear/bf16_amx-inl.h"

struct Processor {
  using Tiles = AmxTiles;
  using Lanes = Fp16Lanes;
};

}  // namespace
}  // namespace redoubt::amx_bf16

#pragma GCC pop_options

namespace redoubt {

void fill_linear_amx_bf16(KernelTable& table) {
  table.round_rows = amx_bf16::round_rows;
  table.linear_bf16 = amx_bf16::linear_bf16<amx_bf16::Processor>;
  table.gate_up_bf16 = amx_bf16::gate_up_bf16<amx_bf16::Processor>;
}

}  // namespace redoubt
