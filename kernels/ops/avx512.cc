// Norm, SiLU, RoPE, KV writes and the passes over logits on AVX-512 (F, BW, DQ, VL, VNNI); puts the tier's
// kernels in the table.
#include <immintrin.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "contract/attention.h"
#include "contract/float_formats.h"
#include "contract/kernel_table.h"
#include "simd/inline.h"
#include "simd/numbers.h"

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")

namespace redoubt::avx512 {
namespace {
#include "simd/vector_avx512-inl.h"

#include "simd/exp2-inl.h"

#include "ops/silu-inl.h"

#include "ops/rows-inl.h"
}  // namespace
}  // namespace redoubt::avx512

#pragma GCC pop_options

namespace redoubt {

void fill_ops_avx512(KernelTable& table) {
  table.rms_norm = avx512::rms_norm;
  table.silu_mul = avx512::silu_mul;
  table.rope = avx512::rope;
  table.write_kv = avx512::write_kv;
  table.block_maxima = avx512::block_maxima;
  table.softmax_weights = avx512::softmax_weights;
}

}  // namespace redoubt
