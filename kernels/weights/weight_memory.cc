// The choice reads /proc/meminfo, the cgroup's files and transparent_hugepage's switch. The copy is made with
// pread(2): the pages of a mapping would count as this process' memory too, and a file that is cut short
// would raise a signal.
#include "weights/weight_memory.h"

#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <system_error>
#include <vector>

#include "machine/failure.h"
#include "machine/numa.h"

namespace redoubt {
namespace {

// For what is not counted: Python and its libraries, and other processes that are just starting.
constexpr size_t kSpareBytes = size_t(256) << 20;

std::string read_file(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// The number after `key` at the start of a line; `otherwise` where there is none.
size_t number_after(const std::string& text, const std::string& key, size_t otherwise) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.compare(0, key.size(), key) != 0) continue;
    char* end = nullptr;
    const unsigned long long value = std::strtoull(line.c_str() + key.size(), &end, 10);
    if (end != line.c_str() + key.size()) return size_t(value);
  }
  return otherwise;
}

// What the limit of our own cgroup (v2) leaves; its page cache can be reclaimed.
size_t cgroup_available_bytes(const std::string& root) {
  std::istringstream lines(read_file(root + "/proc/self/cgroup"));
  std::string path;
  for (std::string line; std::getline(lines, line);) {
    if (line.compare(0, 3, "0::") == 0) path = line.substr(3);
  }
  const std::string folder = root + "/sys/fs/cgroup" + path;
  const size_t limit = number_after(read_file(folder + "/memory.max"), "", SIZE_MAX);  // or "max"
  const size_t used = number_after(read_file(folder + "/memory.current"), "", 0);
  const std::string stat = read_file(folder + "/memory.stat");
  const size_t cached = number_after(stat, "inactive_file ", 0) + number_after(stat, "active_file ", 0);
  if (limit == SIZE_MAX) return SIZE_MAX;
  return limit - std::min(limit, used - std::min(used, cached));
}

// Free bytes and page cache of these nodes; SIZE_MAX for all nodes, or where nothing says.
size_t nodes_available_bytes(const std::vector<int>& nodes, const std::string& root) {
  if (nodes.empty()) return SIZE_MAX;
  size_t kibibytes = 0;
  for (const int node : nodes) {
    const std::string name = "node" + std::to_string(node), line = "Node " + std::to_string(node) + " ";
    const std::string text = read_file(root + "/sys/devices/system/node/" + name + "/meminfo");
    if (text.empty()) return SIZE_MAX;
    for (const char* key : {"MemFree:", "Active(file):", "Inactive(file):"}) {
      kibibytes += number_after(text, line + key, 0);
    }
  }
  return kibibytes << 10;
}

// Why the system gives no huge pages; empty if it does.
std::string huge_pages_refusal(const std::string& root) {
  const std::string path = "/sys/kernel/mm/transparent_hugepage/enabled";
  const std::string modes = read_file(root + path);
  if (modes.empty()) return "this system has no " + path;
  if (modes.find("[never]") != std::string::npos) return path + " is never";
  if (prctl(PR_GET_THP_DISABLE, 0, 0, 0, 0) == 1) return "they are disabled for this process";
  return "";
}

std::string mebibytes(size_t bytes) { return std::to_string(bytes >> 20) + " MiB"; }

// One huge page at a time: it is zeroed, by its first touch, and filled while it is in the cache.
std::vector<SlicePlan::Piece> cut_at_huge_pages(const std::vector<SlicePlan::Piece>& pieces) {
  std::vector<SlicePlan::Piece> parts;
  for (SlicePlan::Piece piece : pieces) {
    while (piece.bytes != 0) {
      const size_t to_next = kHugePageBytes - piece.memory_begin % kHugePageBytes;
      const size_t bytes = std::min(piece.bytes, to_next);
      parts.push_back({piece.file_begin, piece.memory_begin, bytes});
      piece = {piece.file_begin + bytes, piece.memory_begin + bytes, piece.bytes - bytes};
    }
  }
  return parts;
}

bool has_several_nodes(const std::string& root) {
  const std::string nodes = read_file(root + "/sys/devices/system/node/has_memory");  // as "0-1" or "0,2"
  return nodes.find_first_of("-,") != std::string::npos;
}

bool mapping_suffices(const WeightMemoryFacts& facts) {
  if (facts.file_bytes < kHugePageBytes) return true;
  return !has_several_nodes(facts.root) && facts.mapped_huge_bytes >= facts.file_bytes / 20 * 19;
}

// Why there is no memory for a copy of the weights; empty if there is.
std::string memory_refusal(const WeightMemoryFacts& facts) {
  const size_t needed = facts.file_bytes + facts.other_bytes + kSpareBytes;
  const size_t available =
      std::min(available_memory_bytes(facts.root), nodes_available_bytes(facts.bound_nodes, facts.root));
  if (needed <= available) return "";
  return "weights, KV pages and " + mebibytes(kSpareBytes) + " to spare need " + mebibytes(needed) +
         ", but " + mebibytes(available) + " are available";
}

// Why the weights can't be copied to huge pages; empty if they can.
std::string copy_refusal(const WeightMemoryFacts& facts) {
  const std::string refusal = huge_pages_refusal(facts.root);
  return refusal.empty() ? memory_refusal(facts) : refusal;
}

}  // namespace

WeightMemory weight_memory_from_name(std::string_view name) {
  for (const WeightMemory memory : {WeightMemory::kAuto, WeightMemory::kMapped, WeightMemory::kHugePages}) {
    if (name == weight_memory_name(memory)) return memory;
  }
  throw std::invalid_argument("weight_memory: '" + std::string(name) + "' is not auto, mapped or huge_pages");
}

const char* weight_memory_name(WeightMemory memory) {
  switch (memory) {
    case WeightMemory::kAuto:
      return "auto";
    case WeightMemory::kMapped:
      return "mapped";
    case WeightMemory::kHugePages:
      return "huge_pages";
  }
  return "";
}

WeightMemory choose_weight_memory(WeightMemory wanted, const WeightMemoryFacts& facts) {
  if (wanted == WeightMemory::kMapped) return wanted;
  if (wanted == WeightMemory::kAuto && mapping_suffices(facts)) return WeightMemory::kMapped;
  const std::string refusal = copy_refusal(facts);
  if (refusal.empty()) return WeightMemory::kHugePages;
  if (wanted == WeightMemory::kAuto) return WeightMemory::kMapped;
  throw std::invalid_argument("weight_memory: no huge pages for the weights: " + refusal);
}

WeightMemory require_weight_copy(WeightMemory wanted, const WeightMemoryFacts& facts) {
  if (wanted == WeightMemory::kMapped) {
    throw std::invalid_argument("weight_memory: mapped is for weights in a file of a folder: set auto");
  }
  if (wanted == WeightMemory::kHugePages) return choose_weight_memory(wanted, facts);
  const std::string refusal = memory_refusal(facts);
  if (refusal.empty()) return WeightMemory::kHugePages;
  throw std::invalid_argument("weight_memory: no memory for the weights: " + refusal);
}

const uint8_t* map_file(int file, size_t bytes) {
  void* mapped = mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE, file, 0);
  if (mapped == MAP_FAILED) return nullptr;
  // The page cache is then filled in huge pages. If it is refused, nothing changes.
  madvise(mapped, bytes, MADV_HUGEPAGE);
  return static_cast<const uint8_t*>(mapped);
}

void populate_mapping(const uint8_t* begin, size_t bytes, ThreadPool& pool) {
  if (bytes > available_memory_bytes()) return;
  constexpr int kPopulateRead = 22;  // MADV_POPULATE_READ, which older headers lack
  const int pieces = int((bytes + kHugePageBytes - 1) / kHugePageBytes);
  pool.run([&](int thread) {
    const Range mine = share(pieces, thread, pool.threads());
    const size_t first = size_t(mine.begin) * kHugePageBytes;
    const size_t end = std::min(bytes, size_t(mine.end) * kHugePageBytes);
    // Kernels before 5.14 refuse it; there pages are read when they are first touched.
    if (first < end) madvise(const_cast<uint8_t*>(begin) + first, end - first, kPopulateRead);
  });
}

size_t huge_bytes_of_mapping(const uint8_t* begin) {
  std::ifstream maps("/proc/self/smaps");
  char first[20];
  std::snprintf(first, sizeof first, "%lx-", reinterpret_cast<unsigned long>(begin));
  bool found = false;
  for (std::string line; std::getline(maps, line);) {
    if (line.compare(0, std::strlen(first), first) == 0) found = true;
    if (found && line.compare(0, 14, "FilePmdMapped:") == 0)
      return number_after(line, "FilePmdMapped:", 0) << 10;
  }
  return 0;
}

size_t available_memory_bytes(const std::string& root) {
  const size_t kibibytes = number_after(read_file(root + "/proc/meminfo"), "MemAvailable:", SIZE_MAX >> 10);
  return std::min(kibibytes << 10, cgroup_available_bytes(root));
}

ReadRange range_reader(int file) {
  return [file](size_t begin, uint8_t* to, size_t bytes) {
    while (bytes != 0) {
      const ssize_t got = pread(file, to, bytes, off_t(begin));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) throw std::system_error(errno, std::generic_category(), "can't read the weights");
      if (got == 0) throw std::runtime_error("the file of the weights became shorter while it was read");
      begin += size_t(got), to += got, bytes -= size_t(got);
    }
  };
}

AlignedMemory<uint8_t> read_to_huge_pages(const ReadRange& read, const SlicePlan& plan,
                                          const ThreadNodes& nodes, bool bind, ThreadPool& pool) {
  AlignedMemory<uint8_t> memory(plan.bytes);
  for (const SlicePlan::Arena& arena : plan.arenas) {
    if (!bind || arena.bytes == 0) continue;
    bind_range_to_node(memory.data() + arena.begin, arena.bytes, nodes.system_node(arena.node));
  }
  std::vector<std::vector<SlicePlan::Piece>> parts;
  for (const SlicePlan::Arena& arena : plan.arenas) parts.push_back(cut_at_huge_pages(arena.pieces));
  std::vector<std::atomic<size_t>> next(parts.size());
  FirstFailure failure;
  pool.run([&](int thread) {
    const size_t node = size_t(nodes.node_of(thread));
    for (size_t i; !failure.has_failed() && (i = next[node].fetch_add(1)) < parts[node].size();) {
      const SlicePlan::Piece& part = parts[node][i];
      try {
        read(part.file_begin, memory.data() + part.memory_begin, part.bytes);
      } catch (...) {
        failure.keep_current();
      }
    }
  });
  failure.rethrow();
  mprotect(memory.data(), memory.bytes(), PROT_READ);
  return memory;
}

}  // namespace redoubt
