// Where a packed file's bytes lie while the model runs: in the pages of the mapped file, which all processes
// share, or in a copy of this process' own in huge pages, whose addresses the CPU translates faster. Decides
// and copies; knows nothing of what the bytes mean.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "machine/aligned_memory.h"
#include "machine/thread_pool.h"
#include "weights/node_slices.h"

namespace redoubt {

enum class WeightMemory : uint8_t { kAuto, kMapped, kHugePages };

// "auto", "mapped" or "huge_pages". Throws std::invalid_argument.
WeightMemory weight_memory_from_name(std::string_view name);
const char* weight_memory_name(WeightMemory memory);

// What memory the weights may have, and which pages the file has. `root` is put before the paths in /proc and
// /sys that are read, so that tests can have their own.
struct WeightMemoryFacts {
  size_t file_bytes = 0;
  size_t other_bytes = 0;        // that the process will take besides
  size_t mapped_huge_bytes = 0;  // of the file, as it is mapped, in huge pages
  std::vector<int> bound_nodes;  // the only NUMA nodes that memory may come from; empty: all
  std::string root;
};

// kMapped or kHugePages.
//
// Where the file system keeps the file in huge pages, mapping it costs nothing and is as fast as a copy. So
// kAuto is kHugePages only if most of the file is mapped in small pages, or the machine has several NUMA
// nodes, any of which may hold the file's pages; and if the system grants huge pages and has memory for all
// of it. kHugePages throws std::invalid_argument with what is missing.
WeightMemory choose_weight_memory(WeightMemory wanted, const WeightMemoryFacts& facts);
// For weights that no file has, so that they must be copied: kHugePages, which kAuto is also where the system
// grants no huge pages. Throws std::invalid_argument for kMapped, and with what is missing.
WeightMemory require_weight_copy(WeightMemory wanted, const WeightMemoryFacts& facts);

// Maps `bytes` bytes of a file, in huge pages where the page cache has them. Returns null with errno set.
const uint8_t* map_file(int file, size_t bytes);
// Reads the parts of a mapping that are not in the page cache, and maps all of it, with all threads, if there
// is enough memory.
void populate_mapping(const uint8_t* begin, size_t bytes, ThreadPool& pool);
// Bytes of the mapping at `begin` that are in huge pages; 0 where the system does not say.
size_t huge_bytes_of_mapping(const uint8_t* begin);

// Bytes that this process can take before the system, or the limit of its cgroup, runs out: free ones and
// those of the page cache. SIZE_MAX where nothing says.
size_t available_memory_bytes(const std::string& root = "");

// Fills memory with a range of the weights' file. Any thread may call it, several at once. Throws if it
// can't.
using ReadRange = std::function<void(size_t begin, uint8_t* to, size_t bytes)>;

// Reads an open file. Throws std::system_error, or std::runtime_error for a file that has become shorter.
ReadRange range_reader(int file);

// The file's bytes in memory of their own, as the plan has them. Each node's arena is read by the threads of
// that node, which touch its pages first, and bound to it if `bind`. Read-only. Throws what `read` throws.
AlignedMemory<uint8_t> read_to_huge_pages(const ReadRange& read, const SlicePlan& plan,
                                          const ThreadNodes& nodes, bool bind, ThreadPool& pool);

}  // namespace redoubt
