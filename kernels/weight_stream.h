// How the kernels of every tier ask for the weights that they will read next.
#pragma once

#include <xmmintrin.h>

#include <cstdint>

namespace redoubt {

// Weights stream from memory once. The hardware follows a stream, but not across a 4 KiB page, and not far
// enough ahead where a core multiplies while it reads. Into the second-level cache, because the first-level
// one has too few lines in flight: with that hint a core that also computes read up to a third less. 8 KiB
// was the best of 1 to 16.
inline constexpr int kPrefetchBytes = 8192;

[[gnu::always_inline]] inline void prefetch_weights(const uint8_t* weights) {
  _mm_prefetch(reinterpret_cast<const char*>(weights + kPrefetchBytes), _MM_HINT_T1);
}

}  // namespace redoubt
