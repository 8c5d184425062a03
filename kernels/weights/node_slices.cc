// The plan of slices (contract: weights/node_slices.h).
#include "weights/node_slices.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

#include "machine/aligned_memory.h"

namespace redoubt {
namespace {

size_t round_up(size_t bytes, size_t to) { return (bytes + to - 1) / to * to; }

}  // namespace

ThreadNodes::ThreadNodes(int threads, const std::vector<int>& system_nodes) {
  if (!system_nodes.empty() && system_nodes.size() != size_t(threads)) {
    throw std::invalid_argument("nodes: " + std::to_string(system_nodes.size()) + " nodes for " +
                                std::to_string(threads) + " threads");
  }
  for (int thread = 0; thread < threads; ++thread) {
    const int node = system_nodes.empty() ? -1 : system_nodes[size_t(thread)];
    if (system_nodes_.empty() || system_nodes_.back() != node) {
      if (std::find(system_nodes_.begin(), system_nodes_.end(), node) != system_nodes_.end()) {
        throw std::invalid_argument("nodes: the threads of node " + std::to_string(node) +
                                    " are not neighbours");
      }
      system_nodes_.push_back(node);
      first_thread_.push_back(thread);
    }
    node_of_thread_.push_back(int(system_nodes_.size()) - 1);
  }
  first_thread_.push_back(threads);
}

Range ThreadNodes::slice_of(int node, int tiles) const {
  const int units = (tiles + kSliceTiles - 1) / kSliceTiles;
  const Range own = threads_of(node);
  return {std::min(tiles, share(units, own.begin, threads()).begin * kSliceTiles),
          std::min(tiles, share(units, own.end, threads()).begin * kSliceTiles)};
}

int ThreadNodes::owner_of(int tile, int tiles) const {
  int node = 0;
  while (tile >= tiles_of(node, tiles).end) ++node;
  return node;
}

SlicePlan plan_slices(const std::vector<SliceSource>& sources, size_t file_bytes, const ThreadNodes& nodes) {
  SlicePlan plan;
  if (nodes.nodes() == 1) {
    plan.arenas.push_back({0, 0, file_bytes, {{0, 0, file_bytes}}});
    for (const SliceSource& source : sources) plan.begins.push_back({source.file_begin});
    plan.bytes = file_bytes;
    return plan;
  }
  plan.begins.resize(sources.size());
  for (int node = 0; node < nodes.nodes(); ++node) {
    SlicePlan::Arena arena{node, plan.bytes, 0, {}};
    for (size_t i = 0; i < sources.size(); ++i) {
      const SliceSource& source = sources[i];
      if (source.tiles == 0 && node != 0) {
        plan.begins[i].push_back(plan.begins[i].front());
        continue;
      }
      const Range own = source.tiles == 0 ? Range{0, 1} : nodes.tiles_of(node, source.tiles);
      const size_t tile_bytes = source.bytes / size_t(std::max(1, source.tiles));
      const size_t skipped = tile_bytes * size_t(own.begin), bytes = tile_bytes * size_t(own.end - own.begin);
      plan.begins[i].push_back(arena.begin + arena.bytes - skipped);
      if (bytes == 0) continue;
      arena.pieces.push_back({source.file_begin + skipped, arena.begin + arena.bytes, bytes});
      arena.bytes += round_up(bytes, kCacheLineBytes);
    }
    plan.bytes = arena.begin + round_up(arena.bytes, kHugePageBytes);
    plan.arenas.push_back(std::move(arena));
  }
  return plan;
}

}  // namespace redoubt
