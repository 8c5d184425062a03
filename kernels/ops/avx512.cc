// Norms, activations, RoPE, KV writes and the passes over logits on AVX-512 (F, BW, DQ, VL); puts the
// tier's kernels in the table.
#include <immintrin.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "contract/attention.h"
#include "contract/convolution.h"
#include "contract/float_formats.h"
#include "contract/kernel_table.h"
#include "simd/inline.h"
#include "simd/numbers.h"

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")

namespace redoubt::avx512 {
namespace {
#include "simd/vector_avx512-inl.h"

#include "simd/exp2-inl.h"

#include "simd/tanh-inl.h"

#include "simd/row-inl.h"

#include "ops/silu-inl.h"

#include "ops/activations-inl.h"

#include "ops/rows-inl.h"
}  // namespace
}  // namespace redoubt::avx512

#pragma GCC pop_options

namespace redoubt::avx512 {
namespace {
#include "ops/fill-inl.h"
}  // namespace
}  // namespace redoubt::avx512

namespace redoubt {

void fill_ops_avx512(KernelTable& table) { avx512::fill_ops(table); }

}  // namespace redoubt
