// Norms, activations, RoPE, KV writes and the passes over logits on AVX-512 (F, BW, DQ, VL, VNNI); puts the
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
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")

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

namespace redoubt {

void fill_ops_avx512(KernelTable& table) {
  table.rms_norm = avx512::rms_norm;
  table.layer_norm = avx512::layer_norm;
  table.activate[size_t(Activation::kSilu)] = avx512::activate<Activation::kSilu>;
  table.activate[size_t(Activation::kGeluTanh)] = avx512::activate<Activation::kGeluTanh>;
  table.activate[size_t(Activation::kGeluErf)] = avx512::activate<Activation::kGeluErf>;
  table.activate[size_t(Activation::kRelu2)] = avx512::activate<Activation::kRelu2>;
  table.activate[size_t(Activation::kSwigluOai)] = avx512::activate<Activation::kSwigluOai>;
  table.add_scaled = avx512::add_scaled;
  table.convolve_gated = avx512::convolve_gated;
  table.scale = avx512::scale;
  table.softcap = avx512::softcap;
  table.gate_by_sigmoid = avx512::gate_by_sigmoid;
  table.rope = avx512::rope;
  table.write_kv = avx512::write_kv;
  table.block_maxima = avx512::block_maxima;
  table.softmax_weights = avx512::softmax_weights;
}

}  // namespace redoubt
