// Gated DeltaNet of one value head (formulas: contract/delta.h), scalar: defines the results.
//
// Decays are in base 2: E_t = 2^(G_t) and w_tj = 2^(G_t - G_j), which are 0 below 2^kExp2SmallestScaled.
// Every sum is one fp32 accumulator, to which products are added by fma in ascending order. For a column c:
//
//   a = sum over d of S0[d][c] k_t[d]
//   p = sum over j < t of (w_tj (k_j . k_t)) u_j[c]
//   u_t[c] = beta_t (fma(-E_t, a, v_t[c]) - p)
//   b = sum over d of S0[d][c] q_t[d]
//   r = sum over j <= t of (w_tj (k_j . q_t)) u_j[c]
//   o_t[c] = fma(E_t, b, r)
//   S_end[d][c] = E_last S0[d][c] + sum over j of (w_last,j k_j[d]) u_j[c]
#include "delta/scalar.h"

#include <cmath>

#include "contract/kernel_table.h"
#include "ops/scalar.h"
#include "simd/scalar.h"

namespace redoubt::scalar {
namespace {

float weight_of(float decay) { return exp2_nonpositive(decay, kExp2SmallestScaled); }

// sum over i of matrix[i * stride] x[i]
float dot(const float* matrix, int stride, const float* x, int n) {
  float sum = 0.0f;
  for (int i = 0; i < n; ++i) sum = std::fma(matrix[i * stride], x[i], sum);
  return sum;
}

void run_token(const DeltaPage& page, int t) {
  const int row = t - page.begin, n = page.value_dim;
  const float* const k = page.key_rows + row * page.row_stride;
  const float* const q = page.query_rows + row * page.row_stride;
  const float* const v = page.value_rows + row * page.row_stride;
  float key_weights[kPageTokens], query_weights[kPageTokens];
  for (int j = 0; j <= t; ++j) {
    const float weight = weight_of(page.decays[t] - page.decays[j]);
    key_weights[j] = weight * dot(page.keys + j, kPageTokens, k, page.key_dim);
    query_weights[j] = weight * dot(page.keys + j, kPageTokens, q, page.key_dim);
  }
  const float decay = weight_of(page.decays[t]);
  float* const change = page.changes + t * n;
  float* const output = page.outputs + row * page.output_stride;
  for (int c = 0; c < n; ++c) {
    const float kept_k = page.state == nullptr ? 0.0f : dot(page.state + c, n, k, page.key_dim);
    const float kept_q = page.state == nullptr ? 0.0f : dot(page.state + c, n, q, page.key_dim);
    const float new_k = dot(page.changes + c, n, key_weights, t);
    change[c] = page.betas[row] * (std::fma(-decay, kept_k, v[c]) - new_k);
    output[c] = std::fma(decay, kept_q, dot(page.changes + c, n, query_weights, t + 1));
  }
}

void end_page(const DeltaPage& page) {
  const float last = page.decays[kPageTokens - 1], decay = weight_of(last);
  float weights[kPageTokens];
  for (int j = 0; j < kPageTokens; ++j) weights[j] = weight_of(last - page.decays[j]);
  for (int d = 0; d < page.key_dim; ++d) {
    for (int c = 0; c < page.value_dim; ++c) {
      const int at = d * page.value_dim + c;
      float sum = page.state == nullptr ? 0.0f : page.state[at] * decay;
      for (int j = 0; j < kPageTokens; ++j) {
        sum =
            std::fma(page.keys[d * kPageTokens + j] * weights[j], page.changes[j * page.value_dim + c], sum);
      }
      page.end_state[at] = sum;
    }
  }
}

}  // namespace

void convolve_silu(const DeltaConvolution& convolution) {
  const int channels = convolution.channels, taps = convolution.taps;
  // Backwards, so that no row is written that is still to be read.
  for (int64_t r = convolution.count - 1; r >= 0; --r) {
    float sums[kMostDeltaDim] = {};
    for (int tap = 0; tap < taps; ++tap) {
      const int64_t from = r - (taps - 1) + tap;
      const float* const x = from >= 0 ? convolution.rows + from * convolution.stride
                                       : convolution.history + (from + taps - 1) * channels;
      for (int c = 0; c < channels; ++c) {
        sums[c] = std::fma(convolution.weights[tap * convolution.weight_stride + c], x[c], sums[c]);
      }
    }
    activate<Activation::kSilu>(sums, nullptr, channels, convolution.rows + r * convolution.stride);
  }
}

void l2_normalize(float* x, float factor, int n) {
  float lanes[kNormLanes] = {};
  for (int i = 0; i < n; ++i) lanes[i % kNormLanes] = std::fma(x[i], x[i], lanes[i % kNormLanes]);
  const float inverse = factor / std::sqrt(sum_lanes(lanes) + kL2Epsilon);
  for (int i = 0; i < n; ++i) x[i] = x[i] * inverse;
}

void delta_page(const DeltaPage& page, float*) {
  for (int t = page.begin; t < page.end; ++t) run_token(page, t);
  if (page.end == kPageTokens) end_page(page);
}

}  // namespace redoubt::scalar

namespace redoubt {

void fill_delta_scalar(KernelTable& table) {
  table.convolve_silu = scalar::convolve_silu;
  table.l2_normalize = scalar::l2_normalize;
  table.delta_page = scalar::delta_page;
}

}  // namespace redoubt
