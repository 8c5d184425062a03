// tanh on a tier's vectors; its scalar twin is in simd/scalar.h. Included inside the tier's namespace and
// target region, after its vector_<tier>-inl.h.

REDOUBT_INLINE F32s tanh(F32s x) {
  const F32s y = max_of(set(-kTanhClamp), min_of(set(kTanhClamp), mul(x, set(2.0f))));
  const F32s biased = fma(y, set(kLog2eHigh), set(kRoundMagic));
  const F32s n = sub(biased, set(kRoundMagic));
  const F32s f = fma(y, set(kLog2eLow), fms(y, set(kLog2eHigh), n));
  constexpr size_t kTerms = sizeof kExp2 / sizeof kExp2[0];
  F32s poly = set(kExp2[kTerms - 1]);
#pragma GCC unroll 8
  for (size_t i = kTerms - 1; i > 0; --i) poly = fma(poly, f, set(kExp2[i - 1]));
  const F32s power = power_of_two(biased);
  const F32s m = fma(mul(poly, f), power, sub(power, set(1.0f)));
  return div(m, add(m, set(2.0f)));
}
