// Times kernels on the engine's own thread pool. Part of the extension because a timing must hold no Python
// and no interpreter lock. What the machine can do at most is in machine/rates.h.
#pragma once

#include <cstddef>
#include <vector>

#include "contract/kernel_table.h"
#include "contract/linear.h"
#include "machine/rates.h"
#include "machine/thread_pool.h"

namespace redoubt {

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
