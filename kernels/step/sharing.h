// Divides a stage's work into pieces that threads take. Plain arithmetic on ranges.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "machine/shares.h"

namespace redoubt {

// Up to this many rows every thread normalizes and quantizes all rows for itself: that costs less than the
// barrier which sharing them would need.
inline constexpr int kPrivateRows = 4;

// The properties of a stage of matrix products that decide how its work is divided. If products have
// different inputs, the one with most rows decides.
struct SharedWork {
  int items = 0;          // tiles of outputs, or units of them
  size_t item_bytes = 0;  // of weights
  int32_t rows = 0;
  int32_t rounded_rows = 0;  // of these, in bf16
  // Whether all products have the same rows, quantized or rounded: only then can threads share rows.
  bool rows_can_be_shared = false;
};

// One of several parts with about the same number of rows.
struct RowPart {
  int index = 0;
  int count = 1;
};

// Each thread has a share of the tiles, the same in every step, and takes it from front to back in pieces;
// then it takes pieces of others' shares. Pieces halve in size: the first are long, because every kernel call
// begins by ordering all its rows; the last are short, so that all threads end together.
inline constexpr int kSmallestPiecePart = 4;  // of a share
// The smallest piece with few rows, which need no ordering.
inline constexpr size_t kSmallestPieceBytes = 256 << 10;  // of weights: a piece's first bytes come late
// In bf16 a piece's tiles are multiplied with the same inputs one after the other (linear/bf16_amx-inl.h), so
// pieces are equal.
inline constexpr int kBf16PiecesPerShare = 4;
// From this many rows per thread on, the threads of one node share rows instead of tiles, although each then
// reads and unpacks all weights: a core's rows stay in its caches from one stage to the next. Many threads
// would ask too much of the memory.
inline constexpr int kFewestOwnRows = 96;
inline constexpr int kMostRowSharers = 8;

inline bool shares_rows(const SharedWork& work, int threads) {
  const int64_t rows = work.rounded_rows > 0 ? work.rounded_rows : work.rows;
  return work.rows_can_be_shared && threads <= kMostRowSharers && rows >= int64_t(threads) * kFewestOwnRows;
}

// Piece `index` of `all`: half of the rest, unless the other half would be smaller than `fewest`. Empty after
// the last.
inline Range halving_piece(Range all, int index, int fewest) {
  const int left = index < 31 ? (all.end - all.begin) >> index : 0;
  if (left == 0 || (index > 0 && left < fewest)) return {all.end, all.end};
  return {all.end - left, left / 2 < fewest ? all.end : all.end - left / 2};
}

inline Range equal_piece(Range all, int index, int size) {
  const int64_t begin = std::min<int64_t>(all.begin + int64_t(index) * size, all.end);
  return {int(begin), int(std::min<int64_t>(begin + size, all.end))};
}

// Piece `index` of a share of the work. Empty after the last.
inline Range piece_of(const SharedWork& work, Range share, int index) {
  const int size = share.end - share.begin;
  if (work.rows <= kPrivateRows) {
    return halving_piece(share, index, int(std::max<size_t>(1, kSmallestPieceBytes / work.item_bytes)));
  }
  if (work.rounded_rows > 0) return equal_piece(share, index, std::max(1, size / kBf16PiecesPerShare));
  return halving_piece(share, index, std::max(1, size / kSmallestPiecePart));
}

inline Range intersect(Range a, Range b) { return {std::max(a.begin, b.begin), std::min(a.end, b.end)}; }

}  // namespace redoubt
