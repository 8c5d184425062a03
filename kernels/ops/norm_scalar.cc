// RMS norm (Zhang and Sennrich 2019), scalar: defines the result.
#include "ops/scalar.h"
#include "simd/scalar.h"

namespace redoubt::scalar {

void rms_norm(const float* x, const float* weight, float epsilon, int n, float* out) {
  float lanes[kNormLanes] = {};
  for (int i = 0; i < n; ++i) lanes[i % kNormLanes] = std::fma(x[i], x[i], lanes[i % kNormLanes]);
  const float inverse = 1.0f / std::sqrt(sum_lanes(lanes) / float(n) + epsilon);
  for (int i = 0; i < n; ++i) out[i] = x[i] * inverse * weight[i];
}

}  // namespace redoubt::scalar
