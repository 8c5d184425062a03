// Goes over a row of floats of any length by vectors. Included inside the tier's namespace and target region,
// after its vector_<tier>-inl.h.

// A vector of a row, whole or its first n lanes; get gives 0 in the others, and put leaves their memory
// alone.
struct AllLanes {
  REDOUBT_INLINE F32s get(const float* x) const { return load(x); }
  REDOUBT_INLINE void put(float* to, F32s x) const { store(to, x); }
};
struct FirstLanes {
  int n;
  REDOUBT_INLINE F32s get(const float* x) const { return load_first(x, n, set(0.0f)); }
  REDOUBT_INLINE void put(float* to, F32s x) const { store_first(to, x, n); }
};

// Calls operation(i, lanes) for the vectors that begin at 0, kLanes ...
template <typename Operation>
REDOUBT_INLINE void over_row(int n, const Operation& operation) {
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) operation(i, AllLanes{});
  if (i < n) operation(i, FirstLanes{n - i});
}
