// The activations of MLPs on a tier's vectors; ops/activations_scalar.cc defines the results. Included inside
// the tier's namespace and target region, after its vector_<tier>-inl.h, simd/exp2-inl.h and ops/silu-inl.h.

// e^(x + low), where low is a rounding error of x.
REDOUBT_INLINE F32s exp_of_sum(F32s x, F32s low) {
  const F32s biased = fma(x, set(kLog2eHigh), set(kRoundMagic));
  const F32s n = sub(biased, set(kRoundMagic));
  const F32s f = fma(x, set(kLog2eLow), fms(x, set(kLog2eHigh), n));
  return exp2_of_parts(fma(low, set(kLog2eHigh), f), biased);
}

template <size_t kTerms>
REDOUBT_INLINE F32s polynomial(const float (&coefficients)[kTerms], F32s x) {
  F32s sum = set(coefficients[kTerms - 1]);
#pragma GCC unroll 8
  for (size_t i = kTerms - 1; i > 0; --i) sum = fma(sum, x, set(coefficients[i - 1]));
  return sum;
}

REDOUBT_INLINE F32s normal_distribution(F32s x) {
  const F32s a = float_of_bits(magnitude_bits(x)), square = mul(a, a), half = mul(square, set(-0.5f));
  const F32s low = mul(fms(a, a, square), set(-0.5f));
  const F32s ratio = div(polynomial(kTailP, a), polynomial(kTailQ, a));
  const F32s tail = zero_below(half, kTailSmallest, mul(exp_of_sum(half, low), ratio));
  return choose_by_sign(x, tail, sub(set(1.0f), tail));
}

// What an activation does to gates, and what it multiplies them by.
template <Activation kActivation>
REDOUBT_INLINE F32s activated(F32s x) {
  if constexpr (kActivation == Activation::kGeluTanh) {
    const F32s exponent = mul(x, fma(mul(x, x), set(-kGeluTanhCubic), set(-kGeluTanhLinear)));
    return div(x, add(set(1.0f), exp_clamped(exponent)));
  } else if constexpr (kActivation == Activation::kGeluErf) {
    return mul(x, normal_distribution(x));
  } else if constexpr (kActivation == Activation::kRelu) {
    return max_of(set(0.0f), x);
  } else if constexpr (kActivation == Activation::kRelu2) {
    const F32s positive = max_of(set(0.0f), x);
    return mul(positive, positive);
  } else if constexpr (kActivation == Activation::kSwigluOai) {
    const F32s gate = min_of(set(kSwigluLimit), x);
    return div(gate, add(set(1.0f), exp_clamped(mul(gate, set(-kSwigluSteepness)))));
  } else {
    return silu(x);
  }
}
template <Activation kActivation>
REDOUBT_INLINE F32s factor_of(F32s up) {
  if constexpr (kActivation != Activation::kSwigluOai) return up;
  return add(max_of(set(-kSwigluLimit), min_of(set(kSwigluLimit), up)), set(1.0f));
}

void gate_by_sigmoid(const float* gate, int n, float* x) {
  over_row(n, [&](int i, auto lanes) __attribute__((always_inline)) {
    const F32s power = exp_clamped(mul(lanes.get(gate + i), set(-1.0f)));
    lanes.put(x + i, div(lanes.get(x + i), add(set(1.0f), power)));
  });
}

template <Activation kActivation>
void activate(const float* gate, const float* up, int n, float* out) {
  if (up == nullptr) {
    over_row(n, [&](int i, auto lanes) __attribute__((always_inline)) {
      lanes.put(out + i, activated<kActivation>(lanes.get(gate + i)));
    });
  } else {
    over_row(n, [&](int i, auto lanes) __attribute__((always_inline)) {
      const F32s factor = factor_of<kActivation>(lanes.get(up + i));
      lanes.put(out + i, mul(activated<kActivation>(lanes.get(gate + i)), factor));
    });
  }
}
