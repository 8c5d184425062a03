// Times kernels on the engine's own thread pool, and measures what the machine can do at most, for the share
// of it that a kernel reaches. Part of the extension because a timing must hold no Python and no interpreter
// lock.
#pragma once

#include <cstddef>
#include <vector>

#include "kernel_table.h"
#include "packed_matrix.h"
#include "thread_pool.h"

namespace redoubt {

// Each is the best of several passes, over all threads of the pool together. 0 where the CPU lacks the
// instructions.
struct MachineLimits {
  double read_bytes_per_s = 0;      // streaming read of memory far larger than any cache
  double vnni_macs_per_s = 0;       // int8 multiply-adds: vpdpbusd on registers only
  double fma_fp32_flops_per_s = 0;  // fp32 vfmadd on registers only, two operations each
};
MachineLimits measure_limits(ThreadPool& pool);

enum class Activations { kInt8, kFp32 };

// Seconds of each of `repeats` calls of a linear layer with `batch` rows, its tiles shared out over the pool.
// Calls go round as many copies of the matrix as make up `cold_bytes` (at least one), so that with a figure
// of several times the last-level cache every call reads its weights from memory. One call before the first
// is not timed.
std::vector<double> time_linear(ThreadPool& pool, const KernelTable& table, const PackedMatrix& matrix,
                                Activations activations, int batch, int repeats, size_t cold_bytes);

}  // namespace redoubt
