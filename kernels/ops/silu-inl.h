// silu(x) = x / (1 + e^-x) on a tier's vectors; ops/silu_scalar.cc defines the result. Included inside the
// tier's namespace and target region, after its vector_<tier>-inl.h and simd/exp2-inl.h.

REDOUBT_INLINE F32s exp_clamped(F32s x) {
  const float limit = kSiluClamp / kLog2eHigh;
  x = max_of(set(-limit), min_of(set(limit), x));
  const F32s biased = fma(x, set(kLog2eHigh), set(kRoundMagic));
  const F32s n = sub(biased, set(kRoundMagic));
  return exp2_of_parts(fma(x, set(kLog2eLow), fms(x, set(kLog2eHigh), n)), biased);
}

REDOUBT_INLINE F32s silu(F32s x) { return div(x, add(set(1.0f), exp_clamped(mul(x, set(-1.0f))))); }
