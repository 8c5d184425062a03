// Prefetching of weights that kernels read once. Knows no layout and no type.
#pragma once

#include <xmmintrin.h>

#include <cstdint>

#include "machine/cpu.h"

namespace redoubt {

// Weights stream from memory once. The hardware follows a stream, but not across a 4 KiB page, and not far
// enough ahead where a core multiplies while it reads.
//
// kNear prefetches into the first-level cache: best while a kernel is bound by memory. kFar prefetches into
// the second-level cache, which allows more lines in flight: best once multiplying takes about as long as
// reading. kNone leaves it to the hardware. Each kernel's choice was measured (docs/tuning.md).
enum class Prefetch { kNone, kNear, kFar };

// Both were measured (docs/tuning.md). A line 4 KiB ahead falls into the cache set of the line that is being
// read, which slows down all processors but AMD's with AVX-512.
inline const int64_t kNearBytes = is_intel_cpu() ? 3072 : detect_cpu_features().avx512_vnni ? 4096 : 2048;
inline constexpr int kFarBytes = 8192;

template <Prefetch kDistance>
[[gnu::always_inline]] inline void prefetch_weights([[maybe_unused]] const uint8_t* weights) {
  if constexpr (kDistance == Prefetch::kNear) {
    _mm_prefetch(reinterpret_cast<const char*>(weights + kNearBytes), _MM_HINT_T0);
  } else if constexpr (kDistance == Prefetch::kFar) {
    _mm_prefetch(reinterpret_cast<const char*>(weights + kFarBytes), _MM_HINT_T1);
  }
}

// The same for each cache line of [begin, end).
template <Prefetch kDistance>
[[gnu::always_inline]] inline void prefetch_weights(const uint8_t* begin, const uint8_t* end) {
  for (const uint8_t* line = begin; line < end; line += 64) prefetch_weights<kDistance>(line);
}

}  // namespace redoubt
