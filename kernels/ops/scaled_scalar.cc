// Rows times one factor, alone or added to others, scalar: defines the results.
#include <cmath>

#include "ops/scalar.h"

namespace redoubt::scalar {

void add_scaled(const float* x, float factor, int n, float* y) {
  for (int i = 0; i < n; ++i) y[i] = std::fma(factor, x[i], y[i]);
}

void scale(float* x, float factor, int n) {
  for (int i = 0; i < n; ++i) x[i] = x[i] * factor;
}

}  // namespace redoubt::scalar
