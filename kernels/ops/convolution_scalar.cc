// The scalar tier of gated convolutions: it defines their results (contract: contract/convolution.h).
#include <cmath>

#include "contract/convolution.h"
#include "ops/scalar.h"

namespace redoubt::scalar {

void convolve_gated(const GatedRows& rows) {
  for (int64_t r = 0; r < rows.count; ++r) {
    float* const x = rows.values + r * rows.stride;
    for (int32_t c = 0; c < rows.channels; ++c) x[c] = rows.before[r * rows.stride + c] * x[c];
  }
  for (int64_t r = 0; r < rows.count; ++r) {
    for (int32_t c = 0; c < rows.channels; ++c) {
      float sum = rows.bias == nullptr ? 0.0f : rows.bias[c];
      for (int32_t j = 0; j < rows.tap_count; ++j) {
        const int64_t from = r - (rows.tap_count - 1) + j;
        const float* const x = from >= 0 ? rows.values + from * rows.stride : rows.history[r + j];
        if (x != nullptr) sum = std::fma(rows.taps[j * rows.tap_stride + c], x[c], sum);
      }
      rows.output[r * rows.output_stride + c] = rows.behind[r * rows.stride + c] * sum;
    }
  }
}

}  // namespace redoubt::scalar
