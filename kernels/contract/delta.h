// What the kernels of Gated DeltaNet take (Yang, Kautz, Hatamizadeh 2024, "Gated Delta Networks"), and how a
// sequence's state is kept. A value head's state is a matrix S [key_dim][value_dim]; token t does
//   S <- e^(g_t) S;  u_t = beta_t (v_t - S^T k_t);  S <- S + k_t u_t^T;  o_t = S^T q_t
// It is computed by pages of kPageTokens tokens at absolute positions, from the state S0 at the page's start:
//   u_t = beta_t (v_t - e^(G_t) S0^T k_t - sum over j < t of e^(G_t - G_j) (k_j . k_t) u_j)
//   o_t = e^(G_t) S0^T q_t + sum over j <= t of e^(G_t - G_j) (k_j . q_t) u_j
//   S_end = e^(G_last) S0 + sum over j of e^(G_last - G_j) k_j u_j^T
// with G_t the sum of g from the page's start to t. So a token only reads the state, later
// tokens overwrite what a rejected draft token left, and no result depends on how a text is cut into steps.
#pragma once

#include <cstddef>
#include <cstdint>

#include "contract/attention.h"
#include "contract/convolution.h"

namespace redoubt {

// The largest head_dim.
inline constexpr int kMostDeltaDim = 256;
// Epsilon in the L2 norm of queries and keys.
inline constexpr float kL2Epsilon = 1e-6f;
// Lower bound of a token's decay in base 2: 2^this times anything is 0, and sums of decays stay exact.
inline constexpr float kLeastDecay = -160.0f;

// Some channels of a causal convolution, of one sequence's rows of a step, in place.
struct DeltaConvolution {
  float* rows = nullptr;           // row r: rows + r * stride
  const float* history = nullptr;  // [taps - 1][channels], the rows before, oldest first
  const float* weights = nullptr;  // of tap i: weights + i * weight_stride, the oldest row's first
  int64_t stride = 0;
  int64_t weight_stride = 0;
  int32_t count = 0;
  int32_t channels = 0;  // at most kMostDeltaDim
  int32_t taps = 0;
};

// Tokens [begin, end) of a page and one value head, counted from the page's start.
struct DeltaPage {
  const float* state = nullptr;  // S0 [key_dim][value_dim]; null: zeros
  const float* keys = nullptr;   // k [key_dim][kPageTokens], of tokens before `end`
  float* changes = nullptr;  // u [kPageTokens][value_dim]: of tokens before `begin`; the others are written
  const float* decays = nullptr;  // G in base 2 [kPageTokens], of tokens before `end`
  const float* betas = nullptr;   // [end - begin]
  // Rows of token t are at index t - begin.
  const float* query_rows = nullptr;  // q [key_dim]
  const float* key_rows = nullptr;    // k [key_dim]
  const float* value_rows = nullptr;  // v [value_dim]
  int64_t row_stride = 0;             // floats from a token's queries, keys and values to the next one's
  float* outputs = nullptr;           // o [value_dim]
  int64_t output_stride = 0;
  float* end_state = nullptr;  // S_end [key_dim][value_dim], written if `end` is kPageTokens; not `state`
  int32_t begin = 0;
  int32_t end = 0;
  int32_t key_dim = 0;
  int32_t value_dim = 0;
};

// Floats of a DeltaPage's scratch memory: S0^T k and S0^T q, k_j . k and k_j . q, by token.
inline constexpr size_t delta_scratch_floats(int value_dim) {
  return size_t(2) * kPageTokens * (size_t(value_dim) + kPageTokens);
}

}  // namespace redoubt
