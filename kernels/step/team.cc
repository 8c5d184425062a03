// Barriers, their times, and what is fetched in them (contract: step/team.h).
#include "step/team.h"

#include <algorithm>

namespace redoubt {
namespace {

// Of the next stage's weights, asked for while waiting for the other threads: a part of a second-level cache.
constexpr size_t kMostUpcomingBytes = 256 << 10;

}  // namespace

Upcoming Team::upcoming(int32_t rows, std::initializer_list<const PackedMatrix*> matrices,
                        int unit_tiles) const {
  if (rows > kPrivateRows) return {};
  int tiles = 0;
  for (const PackedMatrix* matrix : matrices) {
    const Range own = node_tiles(*matrix);
    tiles += own.end - own.begin;
  }
  const int units = (tiles + unit_tiles - 1) / unit_tiles;
  const Range mine =
      redoubt::share(units, thread_ - node_threads_.begin, node_threads_.end - node_threads_.begin);
  int begin = mine.begin * unit_tiles;
  for (const PackedMatrix* matrix : matrices) {
    const Range own = node_tiles(*matrix);
    const int left = own.end - own.begin - begin;
    if (left > 0) {
      const size_t count = size_t(std::min(left, (mine.end - mine.begin) * unit_tiles));
      return {matrix->tile(own.begin + begin), std::min(matrix->tile_bytes() * count, kMostUpcomingBytes)};
    }
    begin -= own.end - own.begin;
  }
  return {};
}

void Team::barrier(Upcoming upcoming) {
  if (profile_ == nullptr) return pool_.barrier(upcoming);
  const uint64_t began = __rdtsc();
  pool_.barrier(upcoming);
  in_stage_.barriers += __rdtsc() - began;
}

void Team::finish_stage(Stage stage, Upcoming upcoming) {
  barrier(upcoming);
  if (profile_ == nullptr) return;
  const uint64_t now = __rdtsc();
  StageTicks& ticks = (*profile_)[size_t(stage)];
  ticks.all += now - stage_began_;
  ticks.products += in_stage_.products;
  ticks.barriers += in_stage_.barriers;
  in_stage_ = {};
  stage_began_ = now;
}

}  // namespace redoubt
