// Norms, activations, RoPE, KV writes and the passes over logits on AVX2 and FMA; puts the tier's kernels in
// the table.
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
#pragma GCC target("avx2,fma,f16c")

namespace redoubt::avx2 {
namespace {
#include "simd/vector_avx2-inl.h"

#include "simd/exp2-inl.h"

#include "simd/tanh-inl.h"

#include "simd/row-inl.h"

#include "ops/silu-inl.h"

#include "ops/activations-inl.h"

#include "ops/rows-inl.h"
}  // namespace
}  // namespace redoubt::avx2

#pragma GCC pop_options

namespace redoubt {

void fill_ops_avx2(KernelTable& table) {
  table.rms_norm = avx2::rms_norm;
  table.layer_norm = avx2::layer_norm;
  table.activate[size_t(Activation::kSilu)] = avx2::activate<Activation::kSilu>;
  table.activate[size_t(Activation::kGeluTanh)] = avx2::activate<Activation::kGeluTanh>;
  table.activate[size_t(Activation::kGeluErf)] = avx2::activate<Activation::kGeluErf>;
  table.activate[size_t(Activation::kRelu2)] = avx2::activate<Activation::kRelu2>;
  table.activate[size_t(Activation::kSwigluOai)] = avx2::activate<Activation::kSwigluOai>;
  table.add_scaled = avx2::add_scaled;
  table.convolve_gated = avx2::convolve_gated;
  table.scale = avx2::scale;
  table.softcap = avx2::softcap;
  table.gate_by_sigmoid = avx2::gate_by_sigmoid;
  table.rope = avx2::rope;
  table.write_kv = avx2::write_kv;
  table.block_maxima = avx2::block_maxima;
  table.softmax_weights = avx2::softmax_weights;
}

}  // namespace redoubt
