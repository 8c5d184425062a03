// silu(gate) * up, where silu(x) = x / (1 + e^-x) (Elfwing et al. 2017), scalar: defines the result.
#include "ops/scalar.h"
#include "simd/scalar.h"

namespace redoubt::scalar {
namespace {

// e^x with x = log2(e) x kept to two floats; x log2(e) is clamped to +-kSiluClamp; NaN stays NaN.
float exp_clamped(float x) {
  const float limit = kSiluClamp / kLog2eHigh;
  x = limit < x ? limit : x;
  x = -limit > x ? -limit : x;
  const float biased = std::fma(x, kLog2eHigh, kRoundMagic);
  const float n = biased - kRoundMagic;
  return exp2_of_parts(std::fma(x, kLog2eLow, std::fma(x, kLog2eHigh, -n)), biased);
}

}  // namespace

void silu_mul(const float* gate, const float* up, int n, float* out) {
  for (int i = 0; i < n; ++i) out[i] = gate[i] / (1.0f + exp_clamped(-gate[i])) * up[i];
}

}  // namespace redoubt::scalar
