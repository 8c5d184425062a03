// Rotary position embedding (Su et al. 2021) in the "rotate half" order, scalar: defines the result.
#include "ops/scalar.h"

namespace redoubt::scalar {

void rope(float* head, const float* cos_sin, int rotary_dim) {
  const int half = rotary_dim / 2;
  for (int i = 0; i < half; ++i) {
    const float cosine = cos_sin[i], sine = cos_sin[half + i];
    const float a = head[i], b = head[half + i];
    head[i] = std::fma(a, cosine, -(b * sine));
    head[half + i] = std::fma(b, cosine, a * sine);
  }
}

}  // namespace redoubt::scalar
