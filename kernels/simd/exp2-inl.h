// The shared exponential and sums of lanes, on a tier's vectors; their scalar twins are in ops/scalar.h.
// Included inside the tier's namespace and target region, after its vector_<tier>-inl.h.

template <const auto& kCoefficients = kExp2>
REDOUBT_INLINE F32s exp2_of_parts(F32s f, F32s biased) {
  constexpr size_t kTerms = sizeof kCoefficients / sizeof kCoefficients[0];
  F32s poly = set(kCoefficients[kTerms - 1]);
#pragma GCC unroll 8
  for (size_t i = kTerms - 1; i > 0; --i) poly = fma(poly, f, set(kCoefficients[i - 1]));
  poly = fma(poly, f, set(1.0f));
  return mul(poly, power_of_two(biased));
}

// 2^x for x <= 0, wherever 2^x is normal.
template <const auto& kCoefficients = kExp2>
REDOUBT_INLINE F32s exp2_unchecked(F32s x) {
  const F32s biased = add(x, set(kRoundMagic));
  return exp2_of_parts<kCoefficients>(sub(x, sub(biased, set(kRoundMagic))), biased);
}
template <const auto& kCoefficients = kExp2>
REDOUBT_INLINE F32s exp2_nonpositive(F32s x, float smallest = kExp2Smallest) {
  return zero_below(x, smallest, exp2_unchecked<kCoefficients>(x));
}

// Vector j of `lanes` holds lanes j * kLanes onward.
template <int kVectors>
REDOUBT_INLINE float sum_of_lanes(F32s (&lanes)[kVectors]) {
  for (int half = kVectors / 2; half > 0; half /= 2) {
    for (int j = 0; j < half; ++j) lanes[j] = add(lanes[j], lanes[j + half]);
  }
  return sum_of_lanes(lanes[0]);
}
