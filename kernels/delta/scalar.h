// The scalar tier of Gated DeltaNet: it defines every result (contract: contract/kernel_table.h). It is
// compiled for the baseline and without vectorization.
#pragma once

#include "contract/delta.h"

namespace redoubt::scalar {

void convolve_silu(const DeltaConvolution& convolution);
void l2_normalize(float* x, float factor, int n);
void delta_page(const DeltaPage& page, float* scratch);

}  // namespace redoubt::scalar
