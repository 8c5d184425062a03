// Divides items among threads or into passes. Plain arithmetic, right for every count of its type.
#pragma once

#include <cstdint>

namespace redoubt {

template <typename Integer>
struct BasicRange {
  Integer begin;
  Integer end;
};
using Range = BasicRange<int>;

// Share `index` of `count` items in `shares` equal ones: contiguous, sizes differ by at most one. count times
// shares is below 2^63.
template <typename Integer>
inline BasicRange<Integer> share(Integer count, int index, int shares) {
  return {Integer(int64_t(count) * index / shares), Integer(int64_t(count) * (index + 1) / shares)};
}

// The fewest shares of at most `most` items each.
inline int shares_of_at_most(int count, int most) { return int((int64_t(count) + most - 1) / most); }

}  // namespace redoubt
