// How a stage's work is cut into pieces that threads take. Plain arithmetic on ranges.
#pragma once

#include <algorithm>
#include <cstddef>

#include "machine/thread_pool.h"

namespace redoubt {

// Each thread has a share, then takes pieces of others': of the tiles, the same in every step, or of the
// rows, if they are very many. A share is taken from front to back in pieces that halve: the first are long,
// as every call of a kernel begins with putting all its rows in order (5 to 11 % of a 32-token prompt of the
// embedded model on Zen 3 when all pieces were eighths), the last short, so that all threads end together.
inline constexpr int kSmallestPiecePart = 4;  // of a share
// With few rows, which cost nothing to begin with.
inline constexpr size_t kSmallestPieceBytes = 256 << 10;  // of weights: a piece's first bytes come late
// In bf16 a piece's tiles are multiplied with the same inputs one after the other (linear/bf16_amx-inl.h):
// equal pieces.
inline constexpr int kBf16PiecesPerShare = 4;
// With at least so many rows a thread, the threads of one node share rows instead of tiles, though each then
// reads and unpacks all weights: a core's rows stay in its caches from one stage to the next. On two cores of
// a Xeon with AMX 512 rows of SmolLM2-135M take 0.85 of the time, of a model of 1.1 billion weights 0.9. Many
// threads would ask too much of the memory.
inline constexpr int kFewestOwnRows = 96;
inline constexpr int kMostRowSharers = 8;

// Piece `index` of `all`: half of what is left, as long as the other half is not fewer than `fewest`. Empty
// after the last.
inline Range halving_piece(Range all, int index, int fewest) {
  const int left = index < 31 ? (all.end - all.begin) >> index : 0;
  if (left == 0 || (index > 0 && left < fewest)) return {all.end, all.end};
  return {all.end - left, left / 2 < fewest ? all.end : all.end - left / 2};
}

inline Range equal_piece(Range all, int index, int size) {
  const int begin = std::min(all.begin + index * size, all.end);
  return {begin, std::min(begin + size, all.end)};
}

inline Range intersect(Range a, Range b) { return {std::max(a.begin, b.begin), std::min(a.end, b.end)}; }

}  // namespace redoubt
