// What the head and sampling do to every logit, scalar: defines the results. sampling/sampler.cc chooses the
// token.
#include <algorithm>
#include <limits>

#include "contract/kernel_table.h"
#include "ops/scalar.h"
#include "simd/scalar.h"

namespace redoubt::scalar {

void softcap(float* x, float cap, int n) {
  for (int i = 0; i < n; ++i) x[i] = cap * tanh(x[i] / cap);
}

void block_maxima(const float* logits, int n, float* maxima) {
  for (int begin = 0; begin < n; begin += kLogitBlock) {
    float max = -std::numeric_limits<float>::infinity();
    for (int i = begin; i < std::min(n, begin + kLogitBlock); ++i) max = logits[i] > max ? logits[i] : max;
    maxima[begin / kLogitBlock] = max;
  }
}

void softmax_weights(float* logits, int n, float max, float scale, float* sums) {
  for (int begin = 0; begin < n; begin += kLogitBlock) {
    float lanes[kSoftmaxLanes] = {};
    for (int i = begin; i < std::min(n, begin + kLogitBlock); ++i) {
      const float x = (logits[i] - max) * scale;
      logits[i] = x >= kExp2Smallest ? exp2_nonpositive(x) : 0.0f;
      lanes[i % kSoftmaxLanes] += logits[i];
    }
    sums[begin / kLogitBlock] = sum_lanes(lanes);
  }
}

}  // namespace redoubt::scalar
