// Python's view of the kernels that are not linear and of their timings: checks shapes, releases the GIL,
// calls. No arithmetic.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "bindings/arrays.h"
#include "contract/attention.h"
#include "contract/convolution.h"
#include "machine/thread_pool.h"
#include "model/kv_cache.h"
#include "sampling/sampler.h"
#include "testing/bind.h"
#include "testing/measure_ops.h"
#include "testing/tables.h"

namespace nb = nanobind;

namespace redoubt {
namespace {

template <typename T, int kDims>
using Array = nb::ndarray<T, nb::ndim<kDims>, nb::c_contig, nb::device::cpu>;
using Floats = Array<const float, 1>;
using FloatMatrix = Array<const float, 2>;
using FloatResult = nb::ndarray<nb::numpy, float>;

void require(bool valid, const char* message) {
  if (!valid) throw std::invalid_argument(message);
}

const KernelTable& table_named(const std::string& tier) { return kernel_table(tier_from_name(tier)); }

// A new array with the shape of `like`.
template <class Like>
FloatResult empty_like(const Like& like) {
  size_t shape[4], floats = 1;
  for (size_t i = 0; i < like.ndim(); ++i) floats *= shape[i] = like.shape(i);
  auto* values = reinterpret_cast<float*>(allocate_aligned(floats * sizeof(float)).release());
  nb::capsule owner(values, [](void* memory) noexcept { AlignedDelete()(static_cast<std::byte*>(memory)); });
  return FloatResult(values, like.ndim(), shape, owner);
}

FloatResult rms_norm(const FloatMatrix& x, const Floats& weight, float epsilon, const std::string& tier) {
  const KernelTable& table = table_named(tier);
  const size_t rows = x.shape(0), n = x.shape(1);
  require(weight.shape(0) == n, "weight: not [n]");
  FloatResult out = empty_like(x);
  nb::gil_scoped_release unlocked;
  for (size_t r = 0; r < rows; ++r) {
    table.rms_norm(x.data() + r * n, weight.data(), epsilon, int(n), out.data() + r * n);
  }
  return out;
}

FloatResult layer_norm(const FloatMatrix& x, const Floats& weight, const std::optional<Floats>& bias,
                       float epsilon, const std::string& tier) {
  const KernelTable& table = table_named(tier);
  const size_t rows = x.shape(0), n = x.shape(1);
  require(weight.shape(0) == n, "weight: not [n]");
  require(!bias || bias->shape(0) == n, "bias: not [n]");
  FloatResult out = empty_like(x);
  nb::gil_scoped_release unlocked;
  for (size_t r = 0; r < rows; ++r) {
    table.layer_norm(x.data() + r * n, weight.data(), bias ? bias->data() : nullptr, epsilon, int(n),
                     out.data() + r * n);
  }
  return out;
}

FloatResult activate(const std::string& activation, const FloatMatrix& gate,
                     const std::optional<FloatMatrix>& up, const std::string& tier) {
  const KernelTable& table = table_named(tier);
  const size_t rows = gate.shape(0), n = gate.shape(1);
  require(!up || (up->shape(0) == rows && up->shape(1) == n), "up: not of gate's shape");
  ActivateRow* const row = table.activate[size_t(activation_from_name(activation))];
  FloatResult out = empty_like(gate);
  nb::gil_scoped_release unlocked;
  for (size_t r = 0; r < rows; ++r) {
    row(gate.data() + r * n, up ? up->data() + r * n : nullptr, int(n), out.data() + r * n);
  }
  return out;
}

void add_scaled(const Array<const float, 1>& x, float factor, const Array<float, 1>& y,
                const std::string& tier) {
  const KernelTable& table = table_named(tier);
  require(y.shape(0) == x.shape(0), "y: not of x's shape");
  table.add_scaled(x.data(), factor, int(x.shape(0)), y.data());
}

void scale(const Array<float, 1>& x, float factor, const std::string& tier) {
  table_named(tier).scale(x.data(), factor, int(x.shape(0)));
}

void softcap(const Array<float, 1>& x, float cap, const std::string& tier) {
  table_named(tier).softcap(x.data(), cap, int(x.shape(0)));
}

FloatResult convolve_gated(const FloatMatrix& before, const FloatMatrix& behind,
                           const Array<float, 2>& values, const FloatMatrix& history, const FloatMatrix& taps,
                           const std::optional<Floats>& bias, const std::string& tier) {
  const KernelTable& table = table_named(tier);
  const size_t rows = values.shape(0), channels = values.shape(1), tap_count = taps.shape(0);
  for (const FloatMatrix* gates : {&before, &behind}) {
    require(gates->shape(0) == rows && gates->shape(1) == channels, "before, behind: not of values' shape");
  }
  require(taps.shape(1) == channels && tap_count >= 1 && tap_count <= size_t(kMostTaps),
          "taps: not [1 .. 8, channels]");
  require(history.shape(1) == channels && history.shape(0) < tap_count,
          "history: not [below taps, channels]");
  require(!bias || bias->shape(0) == channels, "bias: not [channels]");
  FloatResult out = empty_like(before);
  GatedRows task{.before = before.data(),
                 .behind = behind.data(),
                 .values = values.data(),
                 .stride = int64_t(channels),
                 .taps = taps.data(),
                 .tap_stride = int64_t(channels),
                 .bias = bias ? bias->data() : nullptr,
                 .output = out.data(),
                 .output_stride = int64_t(channels),
                 .count = int32_t(rows),
                 .channels = int32_t(channels),
                 .tap_count = int32_t(tap_count)};
  for (size_t i = 0; i < history.shape(0); ++i) {
    task.history[tap_count - 1 - history.shape(0) + i] = history.data() + i * channels;
  }
  nb::gil_scoped_release unlocked;
  table.convolve_gated(task);
  return out;
}

FloatResult rope(const FloatMatrix& heads, const Floats& cos_sin, const std::string& tier) {
  const KernelTable& table = table_named(tier);
  const size_t rows = heads.shape(0), head_dim = heads.shape(1), rotary_dim = cos_sin.shape(0);
  require(rotary_dim % 2 == 0 && rotary_dim <= head_dim, "cos_sin: not even, or longer than a head");
  FloatResult out = empty_like(heads);
  nb::gil_scoped_release unlocked;
  std::copy_n(heads.data(), heads.size(), out.data());
  for (size_t r = 0; r < rows; ++r) table.rope(out.data() + r * head_dim, cos_sin.data(), int(rotary_dim));
  return out;
}

// Pages of one (layer, kv head), as a test makes them: [pages, kv_block_bytes]. Tokens first .. tokens are
// used.
KvView checked_view(const Array<uint8_t, 2>& pages, const Array<const int32_t, 1>& page_table,
                    const std::string& kv_type, size_t head_dim, const KernelTable& table, int64_t first,
                    int64_t tokens) {
  const KvType type = kv_type_from_name(kv_type);
  require(head_dim > 0 && head_dim % 2 == 0, "head_dim: not even");
  require(table.tier == Tier::kScalar || head_dim % 16 == 0,
          "head_dim: not a multiple of 16, for a vector tier");
  KvView view;
  view.type = type;
  view.head_dim = int32_t(head_dim);
  view.base = reinterpret_cast<std::byte*>(pages.data());
  view.page_stride = int64_t(pages.shape(1));
  view.page_table = page_table.data();
  require(pages.shape(1) == kv_block_bytes(view.type, view.head_dim), "pages: not [pages, bytes of a block]");
  const int64_t needed = (tokens + kPageTokens - 1) / kPageTokens;
  require(needed <= int64_t(page_table.shape(0)), "page_table: too short for the tokens");
  for (int64_t i = first / kPageTokens; i < needed; ++i) {
    require(page_table(i) >= 0 && page_table(i) < int64_t(pages.shape(0)), "page_table: no such page");
  }
  return view;
}

void write_kv(const Array<uint8_t, 2>& pages, const Array<const int32_t, 1>& page_table,
              const std::string& kv_type, int32_t first_token, const FloatMatrix& keys,
              const FloatMatrix& values, const std::string& tier) {
  const KernelTable& table = table_named(tier);
  const size_t tokens = keys.shape(0), head_dim = keys.shape(1);
  require(first_token >= 0, "first_token: negative");
  require(values.shape(0) == tokens && values.shape(1) == head_dim, "values: not of the keys' shape");
  const KvView view =
      checked_view(pages, page_table, kv_type, head_dim, table, first_token, first_token + int64_t(tokens));
  nb::gil_scoped_release unlocked;
  for (size_t t = 0; t < tokens; ++t) {
    table.write_kv(view, first_token + int32_t(t), keys.data() + t * head_dim, values.data() + t * head_dim);
  }
}

void attend_by_partitions(const KernelTable& table, const AttentionTask& task, void* scratch, bool bf16) {
  const int first = first_partition(task), count = partition_count(task);
  const size_t states = size_t(task.query_tokens) * task.group_heads * (task.kv.head_dim + 2);
  const AlignedBytes memory = allocate_aligned(states * count * sizeof(float));
  auto* all = reinterpret_cast<float*>(memory.get());
  // Partitions may come in any order; only the merge has one.
  const auto partition = bf16 ? table.attention_bf16_partition : table.attention_partition;
  for (int p = count - 1; p >= 0; --p) partition(task, first + p, all + states * p, scratch);
  table.attention_merge(task, all, count);
}

FloatResult attention(const Array<const float, 3>& queries, const Array<uint8_t, 2>& pages,
                      const Array<const int32_t, 1>& page_table, const std::string& kv_type,
                      int32_t context_before, float scale, const std::string& tier, bool by_partitions,
                      bool bf16, int32_t window, float softcap, const std::optional<Floats>& slopes,
                      const std::optional<Floats>& sinks) {
  const KernelTable& table = tested_table(tier);
  require(context_before >= 0, "context_before: negative");
  AttentionTask task;
  task.query_tokens = int32_t(queries.shape(0));
  task.group_heads = int32_t(queries.shape(1));
  require(task.query_tokens > 0 && task.group_heads > 0, "queries: empty");
  require(window >= 0, "window: negative");
  require(!slopes || slopes->shape(0) == queries.shape(1), "slopes: not [group_heads]");
  require(!sinks || sinks->shape(0) == queries.shape(1), "sinks: not [group_heads]");
  task.context_before = context_before;
  task.window = window;
  task.kv = checked_view(pages, page_table, kv_type, queries.shape(2), table, first_key(task, 0),
                         int64_t(context_before) + task.query_tokens);
  require(!bf16 || can_attend_in_bf16(task.kv.type, task.kv.head_dim), "bf16: not for such pages");
  FloatResult out = empty_like(queries);
  task.queries = queries.data();
  task.output = out.data();
  task.query_token_stride = task.output_token_stride = int64_t(task.group_heads) * task.kv.head_dim;
  task.scale = scale;
  task.softcap = softcap;
  if (slopes) task.slopes = slopes->data();
  if (sinks) task.sinks = sinks->data();
  nb::gil_scoped_release unlocked;
  const AlignedBytes scratch =
      allocate_aligned(bf16 ? table.attention_bf16_scratch_bytes(task) : table.attention_scratch_bytes(task));
  if (by_partitions) {
    attend_by_partitions(table, task, scratch.get(), bf16);
  } else {
    (bf16 ? table.attention_bf16 : table.attention)(task, scratch.get());
  }
  return out;
}

// (wall, CPU) seconds of each pass.
using Times = std::vector<std::pair<double, double>>;
Times as_pairs(const std::vector<PassTime>& passes) {
  Times times;
  for (const PassTime& pass : passes) times.emplace_back(pass.wall_s, pass.cpu_s);
  return times;
}

Times attention_seconds(int tasks, int query_tokens, int group_heads, int context_before, int head_dim,
                        const std::string& kv_type, int repeats, int threads, const std::vector<int>& cpus,
                        const std::string& tier, int window) {
  const KernelTable& table = table_named(tier);
  require(tasks > 0 && query_tokens > 0 && group_heads > 0 && context_before >= 0 && window >= 0 &&
              head_dim > 0 && head_dim % 16 == 0,
          "not a shape of attention with a head_dim that is a multiple of 16");
  const KvType type = kv_type_from_name(kv_type);
  nb::gil_scoped_release unlocked;
  ThreadPool pool(threads, cpus);
  return as_pairs(time_attention(
      pool, table, {tasks, query_tokens, group_heads, context_before, head_dim, type, window}, repeats));
}

Times rows_seconds(const std::string& op, int rows, int n, int repeats, int threads,
                   const std::vector<int>& cpus, const std::string& tier) {
  const KernelTable& table = table_named(tier);
  require(rows > 0 && n > 0 && n % 16 == 0, "rows, n: not positive, or n not a multiple of 16");
  nb::gil_scoped_release unlocked;
  ThreadPool pool(threads, cpus);
  return as_pairs(time_rows(pool, table, op, rows, n, repeats));
}

}  // namespace

void bind_row_kernels(nb::module_& testing) {
  using nb::arg;
  testing.def("rms_norm", &rms_norm, arg("x"), arg("weight"), arg("epsilon"), arg("tier"));
  testing.def("layer_norm", &layer_norm, arg("x"), arg("weight"), arg("bias").none(), arg("epsilon"),
              arg("tier"));
  testing.def("activate", &activate, arg("activation"), arg("gate"), arg("up").none(), arg("tier"));
  testing.def("add_scaled", &add_scaled, arg("x"), arg("factor"), arg("y"), arg("tier"));
  testing.def("convolve_gated", &convolve_gated, arg("before"), arg("behind"), arg("values"), arg("history"),
              arg("taps"), arg("bias").none(), arg("tier"));
  testing.def("scale", &scale, arg("x"), arg("factor"), arg("tier"));
  testing.def("softcap", &softcap, arg("x"), arg("cap"), arg("tier"));
  testing.def("rope", &rope, arg("heads"), arg("cos_sin"), arg("tier"));
  testing.def("write_kv", &write_kv, arg("pages"), arg("page_table"), arg("kv_type"), arg("first_token"),
              arg("keys"), arg("values"), arg("tier"));
  testing.def("attention", &attention, arg("queries"), arg("pages"), arg("page_table"), arg("kv_type"),
              arg("context_before"), arg("scale"), arg("tier"), nb::kw_only(), arg("by_partitions") = false,
              arg("bf16") = false, arg("window") = 0, arg("softcap") = 0.0f,
              arg("slopes").none() = nb::none(), arg("sinks").none() = nb::none());
  testing.def("time_attention", &attention_seconds, arg("tasks"), arg("query_tokens"), arg("group_heads"),
              arg("context_before"), arg("head_dim"), arg("kv_type"), arg("repeats"), arg("threads"),
              arg("cpus"), arg("tier"), nb::kw_only(), arg("window") = 0);
  testing.def("time_rows", &rows_seconds, arg("op"), arg("rows"), arg("n"), arg("repeats"), arg("threads"),
              arg("cpus"), arg("tier"));
  testing.def("philox_4x32_10", &philox_4x32_10, arg("counter"), arg("key"));
}

}  // namespace redoubt
