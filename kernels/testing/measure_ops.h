// Times the kernels that are not linear on the engine's own thread pool, on data of its own making: a timing
// must hold no Python and no interpreter lock. Judges nothing.
#pragma once

#include <string>
#include <vector>

#include "contract/attention.h"
#include "machine/thread_pool.h"
#include "testing/measure.h"

namespace redoubt {

struct AttentionCase {
  int tasks;  // (sequence, kv head) pairs, each with pages of its own, shared out over the pool
  int query_tokens;
  int group_heads;
  int context_before;
  int head_dim;
  KvType kv_type;
  int window;  // 0: all keys
};

// `repeats` runs of all tasks; one run before the first is not timed.
std::vector<PassTime> time_attention(ThreadPool& pool, const KernelTable& table, const AttentionCase& shape,
                                     int repeats);

// The same for "rms_norm", "layer_norm", an activation by name, "add_scaled", "scale", "softcap" or "rope" of
// `rows` rows of n values, and "write_kv" of as many tokens of head_dim n, in int16. Throws
// std::invalid_argument for another name.
std::vector<PassTime> time_rows(ThreadPool& pool, const KernelTable& table, const std::string& op, int rows,
                                int n, int repeats);

}  // namespace redoubt
