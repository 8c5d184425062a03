// One engine over several NUMA nodes: which threads are on which node, which output tiles of every matrix are
// a node's own, and where in memory those lie. Plain arithmetic; binds nothing and starts nothing.
//
// A node's threads compute the same tiles of a matrix in every step, whatever the batch, and a node's tiles
// of all matrices lie together, so that each weight is read by its own node only (tensor parallelism by
// rows). Activations are shared.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "machine/thread_pool.h"

namespace redoubt {

// Which threads of a pool are on which node. Nodes are counted from 0 in the order of their threads.
class ThreadNodes {
 public:
  // system_nodes: each thread's NUMA node; empty: all threads on one node, whichever it is. Throws
  // std::invalid_argument for another number of nodes than threads, and for a node whose threads are not
  // neighbours.
  ThreadNodes(int threads, const std::vector<int>& system_nodes);

  int nodes() const { return int(first_thread_.size()) - 1; }
  int threads() const { return first_thread_.back(); }
  int node_of(int thread) const { return node_of_thread_[size_t(thread)]; }
  Range threads_of(int node) const { return {first_thread_[size_t(node)], first_thread_[size_t(node) + 1]}; }
  // The system's number of a node; -1 where it does not matter.
  int system_node(int node) const { return system_nodes_[size_t(node)]; }
  // A node's own tiles of a matrix: in proportion to its threads, in whole multiples of kSliceTiles.
  Range tiles_of(int node, int tiles) const { return nodes() == 1 ? Range{0, tiles} : slice_of(node, tiles); }
  int owner_of(int tile, int tiles) const;

  // 4 tiles of 32 are 128 columns, the largest group: so no group of quantized activations is cut.
  static constexpr int kSliceTiles = 4;

 private:
  Range slice_of(int node, int tiles) const;

  std::vector<int> node_of_thread_;
  std::vector<int> first_thread_;  // [nodes + 1]
  std::vector<int> system_nodes_;  // [nodes]
};

// A tensor of the file: tiles that are distributed over the nodes, or one piece for the first node.
struct SliceSource {
  size_t file_begin = 0;
  size_t bytes = 0;
  int tiles = 0;  // 0: not a matrix
};

// Where the file's bytes go. A node's are contiguous and begin at a huge page.
struct SlicePlan {
  struct Piece {
    size_t file_begin, memory_begin, bytes;
  };
  struct Arena {
    int node;
    size_t begin, bytes;
    std::vector<Piece> pieces;
  };
  std::vector<Arena> arenas;  // one a node, in order
  // By source and node: where tile 0 of the source would be if the node had all of its tiles. That is inside
  // the memory, because the arenas of earlier nodes hold at least the earlier tiles.
  std::vector<std::vector<size_t>> begins;
  size_t bytes = 0;  // of all arenas
};

// With one node the file is copied as it is.
SlicePlan plan_slices(const std::vector<SliceSource>& sources, size_t file_bytes, const ThreadNodes& nodes);

}  // namespace redoubt
