// Times kernels on the engine's own thread pool, and measures what the machine can do at most, for the share
// of it that a kernel reaches. Part of the extension because a timing must hold no Python and no interpreter
// lock.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "contract/kernel_table.h"
#include "contract/linear.h"
#include "machine/thread_pool.h"

namespace redoubt {

// One timed pass of all threads together.
struct PassTime {
  double wall_s = 0;
  double cpu_s = 0;  // of the slowest thread: what the pass would take on idle cores
};

// `repeats` passes of work(thread, pass) on all threads of the pool, which start each pass together.
std::vector<PassTime> time_passes(ThreadPool& pool, int repeats, const std::function<void(int, int)>& work);

// Peak rates of the pool's threads together, with operands in registers; 0 where the CPU lacks the
// instruction.
struct ComputeLimits {
  double maddubs_macs_per_s = 0;   // int8 multiply-adds of vpmaddubsw and vpaddw, on 256 bits
  double vnni_macs_per_s = 0;      // int8 multiply-adds of vpdpbusd on 512 bits
  double amx_int8_macs_per_s = 0;  // int8 multiply-adds of tdpbssd on full tiles
  double amx_bf16_macs_per_s = 0;  // bf16 multiply-adds of tdpbf16ps
  double fma_fp32_macs_per_s = 0;  // fp32 multiply-adds
};
ComputeLimits measure_compute(ThreadPool& pool);

// Streaming reads of `bytes` (a share for each thread), going round through `cold_bytes` of memory: what a
// kernel that reads as many bytes can reach at most. Needs AVX2.
std::vector<PassTime> time_read(ThreadPool& pool, size_t bytes, int repeats, size_t cold_bytes,
                                bool huge_pages);

// `repeats` calls of a linear layer with `batch` rows, its tiles shared out over the pool. Calls go round
// through as many copies of the matrix as make up `cold_bytes` (at least one), so that with a figure of
// several times the last-level cache every call reads its weights from memory. One call before the first is
// not timed.
std::vector<PassTime> time_linear(ThreadPool& pool, const KernelTable& table, const PackedMatrix& matrix,
                                  Activations activations, int batch, int repeats, size_t cold_bytes,
                                  bool huge_pages);

// Nanoseconds per barrier of a pool, and proof that it is one: throws std::logic_error if a thread ever
// passes early.
double measure_barrier_ns(int threads, std::vector<int> cpus, int rounds);

}  // namespace redoubt
