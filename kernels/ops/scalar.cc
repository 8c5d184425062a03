// Puts the scalar tier's non-linear kernels in the table. The kernels are beside this file, one family each.
#include "ops/scalar.h"

#include "contract/kernel_table.h"

namespace redoubt {

void fill_ops_scalar(KernelTable& table) {
  table.rms_norm = scalar::rms_norm;
  table.layer_norm = scalar::layer_norm;
  table.activate[size_t(Activation::kSilu)] = scalar::silu;
  table.activate[size_t(Activation::kGeluTanh)] = scalar::gelu_tanh;
  table.activate[size_t(Activation::kGeluErf)] = scalar::gelu_erf;
  table.activate[size_t(Activation::kRelu2)] = scalar::relu2;
  table.activate[size_t(Activation::kSwigluOai)] = scalar::swiglu_oai;
  table.add_scaled = scalar::add_scaled;
  table.convolve_gated = scalar::convolve_gated;
  table.scale = scalar::scale;
  table.softcap = scalar::softcap;
  table.gate_by_sigmoid = scalar::gate_by_sigmoid;
  table.rope = scalar::rope;
  table.write_kv = scalar::write_kv;
  table.block_maxima = scalar::block_maxima;
  table.softmax_weights = scalar::softmax_weights;
}

}  // namespace redoubt
