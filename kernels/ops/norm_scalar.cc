// RMS norm (Zhang and Sennrich 2019) and layer norm (Ba et al. 2016), scalar: defines the results.
#include "ops/scalar.h"
#include "simd/scalar.h"

namespace redoubt::scalar {

void rms_norm(const float* x, const float* weight, float epsilon, int n, float* out) {
  float lanes[kNormLanes] = {};
  for (int i = 0; i < n; ++i) lanes[i % kNormLanes] = std::fma(x[i], x[i], lanes[i % kNormLanes]);
  const float inverse = 1.0f / std::sqrt(sum_lanes(lanes) / float(n) + epsilon);
  for (int i = 0; i < n; ++i) out[i] = x[i] * inverse * weight[i];
}

void layer_norm(const float* x, const float* weight, const float* bias, float epsilon, int n, float* out) {
  float sums[kNormLanes] = {}, squares[kNormLanes] = {};
  for (int i = 0; i < n; ++i) sums[i % kNormLanes] += x[i];
  const float mean = sum_lanes(sums) / float(n);
  for (int i = 0; i < n; ++i) {
    const float d = x[i] - mean;
    squares[i % kNormLanes] = std::fma(d, d, squares[i % kNormLanes]);
  }
  const float inverse = 1.0f / std::sqrt(sum_lanes(squares) / float(n) + epsilon);
  for (int i = 0; i < n; ++i) {
    const float normal = (x[i] - mean) * inverse;
    out[i] = bias == nullptr ? normal * weight[i] : std::fma(normal, weight[i], bias[i]);
  }
}

}  // namespace redoubt::scalar
