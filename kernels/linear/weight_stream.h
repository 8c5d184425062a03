// How the kernels ask for the weights that they will read next.
#pragma once

#include <xmmintrin.h>

#include <cstdint>

#include "machine/cpu.h"

namespace redoubt {

// Weights stream from memory once. The hardware follows a stream, but not across a 4 KiB page, and not far
// enough ahead where a core multiplies while it reads.
//
// kNear, into the first-level cache, is the steadier while a kernel is bound by memory: on Zen 4 one row of
// int4 reads 62 GB/s with it and, from call to call, 47 or 71 with kFar. kFar, into the second-level cache,
// which has room for more lines in flight, is the better once multiplying takes about as long as reading: 8
// rows of int8 read 48 GB/s for 35; on Zen 3 with AVX2 2 to 4 rows of sym_int4 take 0.83 to 0.95 of the time.
// kNone, nothing, where the hardware does it as well.
enum class Prefetch { kNone, kNear, kFar };

// 1 to 16 KiB were measured for both. 4 KiB ahead a line falls into the set of the one that is being read:
// one row reads 75 to 80 % of what plain reading does on a Xeon with AMX then, with 3 KiB 90 %; on Zen 3 84
// to 89 %, with 2 KiB 88 to 95 %. Zen 4, which has AVX-512, does not mind.
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

// For weights that follow those in [begin, end).
template <Prefetch kDistance>
[[gnu::always_inline]] inline void prefetch_weights(const uint8_t* begin, const uint8_t* end) {
  for (const uint8_t* line = begin; line < end; line += 64) prefetch_weights<kDistance>(line);
}

}  // namespace redoubt
