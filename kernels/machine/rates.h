// The processor's limits: two rates of a thread pool, reads from memory and multiply-adds. Implemented here
// and not in Python, because a timing must hold no interpreter lock. Knows no model.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <new>
#include <string_view>
#include <vector>

#include "machine/thread_pool.h"

namespace redoubt {

// One timed pass of all threads together.
struct PassTime {
  double wall_s = 0;
  double cpu_s = 0;  // of the slowest thread: what the pass would take on idle cores
};

// Times `repeats` passes of work(thread, pass) on all threads of the pool, which start each pass together.
std::vector<PassTime> time_passes(ThreadPool& pool, int repeats, const std::function<void(int, int)>& work);

// Peak rates of the pool's threads together, with operands in registers: the best of bursts of some tens of
// milliseconds. 0 where the CPU lacks the instruction.
struct ComputeLimits {
  double maddubs_macs_per_s = 0;   // int8 multiply-adds of vpmaddubsw and vpaddw, on 256 bits
  double vnni_macs_per_s = 0;      // int8 multiply-adds of vpdpbusd on 512 bits
  double amx_int8_macs_per_s = 0;  // int8 multiply-adds of tdpbssd on full tiles
  double amx_bf16_macs_per_s = 0;  // bf16 multiply-adds of tdpbf16ps
  double fma_fp32_macs_per_s = 0;  // fp32 multiply-adds
};
ComputeLimits measure_compute(ThreadPool& pool);

// The sustained rate: the median of the second half of about `duration_s`. instruction: a name of
// ComputeLimits without "_macs_per_s". Throws std::invalid_argument if the CPU lacks it.
double sustained_macs_per_s(ThreadPool& pool, std::string_view instruction, double duration_s);

// Streaming reads of `bytes` (a share for each thread, which touched it first), going round through
// `cold_bytes` of memory: what a kernel that reads as many bytes can reach at most. Needs AVX2.
std::vector<PassTime> time_read(ThreadPool& pool, size_t bytes, int repeats, size_t cold_bytes,
                                bool huge_pages);

// Zeroed memory, in ordinary pages like a mapped file's, or in huge pages where the system grants them.
class MeasuredPages {
 public:
  MeasuredPages(size_t bytes, bool huge) : bytes_((bytes / kHugeBytes + 1) * kHugeBytes) {
    mapping_ = mmap(nullptr, bytes_ + kHugeBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapping_ == MAP_FAILED) throw std::bad_alloc();
    data_ = reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(mapping_) + kHugeBytes - 1) / kHugeBytes *
                                    kHugeBytes);
    madvise(data_, bytes_, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
  }
  ~MeasuredPages() { munmap(mapping_, bytes_ + kHugeBytes); }
  MeasuredPages(const MeasuredPages&) = delete;
  MeasuredPages& operator=(const MeasuredPages&) = delete;
  template <typename T>
  T* as() const {
    return static_cast<T*>(data_);
  }

 private:
  static constexpr size_t kHugeBytes = size_t(2) << 20;
  size_t bytes_;
  void* mapping_;
  void* data_;
};

}  // namespace redoubt
