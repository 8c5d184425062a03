// Timings of the non-linear kernels (contract: testing/measure_ops.h).
#include "testing/measure_ops.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <stdexcept>

#include "machine/aligned_memory.h"

namespace redoubt {
namespace {

// Values in [-1, 1) from a linear congruential generator. No kernel's speed depends on them, as long as they
// are ordinary numbers.
AlignedMemory<float> some_values(size_t count) {
  AlignedMemory<float> values(count);
  uint32_t state = 1;
  for (size_t i = 0; i < count; ++i) {
    state = state * 1664525 + 1013904223;
    values[i] = float(int32_t(state)) * 0x1p-31f;
  }
  return values;
}

// One run before the first is not timed.
std::vector<PassTime> time_runs(ThreadPool& pool, int repeats, const std::function<void(int)>& run) {
  pool.run(run);
  return time_passes(pool, repeats, [&](int thread, int) { run(thread); });
}

}  // namespace

std::vector<PassTime> time_attention(ThreadPool& pool, const KernelTable& table, const AttentionCase& shape,
                                     int repeats) {
  const int keys = shape.context_before + shape.query_tokens, head_dim = shape.head_dim;
  const int pages = (keys + kPageTokens - 1) / kPageTokens;
  const size_t block_bytes = kv_block_bytes(shape.kv_type, head_dim);
  // A page's blocks of all tasks are neighbours, as they are in the engine.
  const size_t page_bytes = block_bytes * shape.tasks;
  const AlignedMemory<std::byte> memory(page_bytes * pages);
  std::vector<int32_t> page_table(pages);
  for (int i = 0; i < pages; ++i) page_table[i] = pages - 1 - i;
  const size_t query_floats = size_t(shape.query_tokens) * shape.group_heads * head_dim;
  const AlignedMemory<float> queries = some_values(query_floats), values = some_values(2 * head_dim);
  const AlignedMemory<float> outputs(query_floats * shape.tasks);
  std::vector<AttentionTask> tasks(shape.tasks);
  for (int i = 0; i < shape.tasks; ++i) {
    tasks[i].queries = queries.data();
    tasks[i].output = outputs.data() + query_floats * i;
    tasks[i].query_token_stride = tasks[i].output_token_stride = int64_t(shape.group_heads) * head_dim;
    tasks[i].query_tokens = shape.query_tokens;
    tasks[i].group_heads = shape.group_heads;
    tasks[i].context_before = shape.context_before;
    tasks[i].window = shape.window;
    tasks[i].scale = 0.125f;
    tasks[i].kv = {.base = memory.data() + block_bytes * i,
                   .page_stride = int64_t(page_bytes),
                   .page_table = page_table.data(),
                   .type = shape.kv_type,
                   .head_dim = head_dim};
    for (int t = 0; t < keys; ++t)
      table.write_kv(tasks[i].kv, t, values.data() + t % head_dim, values.data() + t % head_dim);
  }
  const size_t scratch_bytes = (table.attention_scratch_bytes(tasks[0]) + 63) / 64 * 64;
  const AlignedMemory<std::byte> scratch(scratch_bytes * pool.threads());
  return time_runs(pool, repeats, [&](int thread) {
    const Range range = share(shape.tasks, thread, pool.threads());
    for (int i = range.begin; i < range.end; ++i) {
      table.attention(tasks[i], scratch.data() + scratch_bytes * thread);
    }
  });
}

std::vector<PassTime> time_rows(ThreadPool& pool, const KernelTable& table, const std::string& op, int rows,
                                int n, int repeats) {
  const size_t floats = size_t(rows) * n;
  const AlignedMemory<float> x = some_values(floats), y = some_values(floats), out = some_values(floats);
  const int pages = (rows + kPageTokens - 1) / kPageTokens;
  std::vector<int32_t> page_table(pages);
  for (int i = 0; i < pages; ++i) page_table[i] = i;
  const size_t block_bytes = kv_block_bytes(KvType::kInt16, n);
  const AlignedMemory<std::byte> memory(block_bytes * pages);
  const KvView kv{memory.data(), int64_t(block_bytes), page_table.data(), KvType::kInt16, n};
  const auto row_of = [n](const AlignedMemory<float>& values, int r) {
    return values.data() + size_t(r) * n;
  };
  std::function<void(int)> row;
  if (op == "rms_norm") {
    row = [&](int r) { table.rms_norm(row_of(x, r), y.data(), 1e-5f, n, row_of(out, r)); };
  } else if (op == "layer_norm") {
    row = [&](int r) { table.layer_norm(row_of(x, r), y.data(), y.data(), 1e-5f, n, row_of(out, r)); };
  } else if (op == "add_scaled") {
    row = [&](int r) { table.add_scaled(row_of(x, r), 0x1p-12f, n, row_of(out, r)); };
  } else if (op == "scale") {  // by 1, so that the values stay ordinary from run to run
    row = [&](int r) { table.scale(row_of(out, r), 1.0f, n); };
  } else if (op == "softcap") {
    row = [&](int r) { table.softcap(row_of(out, r), 30.0f, n); };
  } else if (op == "rope") {
    row = [&](int r) { table.rope(row_of(out, r), y.data(), n); };
  } else if (op == "write_kv") {
    row = [&](int r) { table.write_kv(kv, r, row_of(x, r), row_of(y, r)); };
  } else if (std::ranges::find(kActivationNames, op) != std::end(kActivationNames)) {
    ActivateRow* const activate = table.activate[size_t(activation_from_name(op))];
    row = [&, activate](int r) { activate(row_of(x, r), row_of(y, r), n, row_of(out, r)); };
  } else {
    throw std::invalid_argument("op: '" + op + "' is not an operation on rows");
  }
  return time_runs(pool, repeats, [&](int thread) {
    const Range range = share(rows, thread, pool.threads());
    for (int r = range.begin; r < range.end; ++r) row(r);
  });
}

}  // namespace redoubt
