// The soft cap and ALiBi on a tier's vectors; the scalar twin is in attention/scalar.h. Included inside the
// tier's namespace and target region, after simd/tanh-inl.h.

// Scores, times log2(e), of kLanes keys as they go into the maximum; an infinite one becomes NaN. distance:
// from the query's position to the first of the keys.
REDOUBT_INLINE F32s modified(F32s score, const ScoreModifier& modifier, int distance) {
  alignas(64) static constexpr float kOffsets[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  if (modifier.cap != 0.0f) {
    const F32s capped = mul(set(modifier.cap), tanh(mul(score, set(modifier.inverse_cap))));
    score = add(capped, sub(score, score));
  }
  if (modifier.slope == 0.0f) return score;
  return fma(set(modifier.slope), add(set(float(distance)), load(kOffsets)), score);
}
