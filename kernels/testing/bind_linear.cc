// Python's view of single linear kernels and of their timings: checks shapes, releases the GIL, calls. No
// arithmetic.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <initializer_list>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bindings/arrays.h"
#include "bindings/linear.h"
#include "machine/thread_pool.h"
#include "testing/bind.h"
#include "testing/emulated_tiles.h"
#include "testing/measure.h"
#include "testing/tables.h"

namespace nb = nanobind;

namespace redoubt {
namespace {

// Sums, rows and columns, in this order, as (rows, bytes of a row).
void shape_tiles(TileConfig& config, std::initializer_list<std::pair<size_t, size_t>> shapes) {
  int tile = 0;
  for (const auto& [rows, bytes] : shapes) {
    if (rows > size_t(kTileRows) || bytes > size_t(kTileRowBytes)) reject("larger than a tile");
    config.shape(tile++, int(rows), int(bytes));
  }
}
template <typename... Matrices>
void check_contiguous(const Matrices&... matrices) {
  const auto contiguous = [](const auto& matrix) { return matrix.size() == 0 || matrix.stride(1) == 1; };
  if (!(contiguous(matrices) && ...)) reject("not contiguous along the last");
}

void emulate_tdpbssd_array(const Strided<const int8_t>& a, const Strided<const int8_t>& b,
                           const Strided<int32_t>& c) {
  TileConfig config;
  shape_tiles(config, {{c.shape(0), c.shape(1) * 4}, {a.shape(0), a.shape(1)}, {b.shape(0), b.shape(1)}});
  check_contiguous(a, b, c);
  EmulatedTiles tiles(config);
  tiles.load<0>(c.data(), c.stride(0) * int64_t(sizeof(int32_t)));
  tiles.load<1>(a.data(), a.stride(0));
  tiles.load<2>(b.data(), b.stride(0));
  tiles.dot_product<0, 1, 2>();
  tiles.store<0>(c.data(), c.stride(0) * int64_t(sizeof(int32_t)));
}

// The same of TDPBF16PS, bf16 as its bits.
void emulate_tdpbf16ps_array(const Strided<const uint16_t>& a, const Strided<const uint16_t>& b,
                             const Strided<float>& c) {
  TileConfig config;
  shape_tiles(config,
              {{c.shape(0), c.shape(1) * 4}, {a.shape(0), a.shape(1) * 2}, {b.shape(0), b.shape(1) * 2}});
  check_contiguous(a, b, c);
  EmulatedTiles tiles(config);
  tiles.load<0>(c.data(), c.stride(0) * 4);
  tiles.load<1>(a.data(), a.stride(0) * 2);
  tiles.load<2>(b.data(), b.stride(0) * 2);
  tiles.dot_product_bf16<0, 1, 2>();
  tiles.store<0>(c.data(), c.stride(0) * 4);
}

void check_groups(const Strided<const float>& x, int64_t group) {
  if (group != 32 && group != 64 && group != 128) reject("group: not 32, 64 or 128");
  if (int64_t(x.shape(1)) % group != 0 || x.stride(1) != 1)
    reject("x: not [rows, a multiple of the group], contiguous along it");
}

// Calls take(block, row, col) for x in blocks of so many rows and columns, as the model has it.
template <typename Take>
void for_blocks(const Strided<const float>& x, int32_t block_rows, int32_t block_cols, const Take& take) {
  const auto rows = int32_t(x.shape(0)), cols = int32_t(x.shape(1));
  for (int32_t row = 0; row < rows; row += block_rows) {
    for (int32_t col = 0; col < cols; col += block_cols) {
      take(FloatRows{x.data() + row * x.stride(0) + col, x.stride(0), std::min(block_rows, rows - row),
                     std::min(block_cols, cols - col)},
           row, col);
    }
  }
}

nb::tuple quantize_rows_array(const Strided<const float>& x, int64_t group, const std::string& tier,
                              int terms, int32_t block_rows, int32_t block_cols) {
  const KernelTable& table = tested_table(tier);
  const auto rows = int32_t(x.shape(0)), cols = int32_t(x.shape(1));
  check_groups(x, group);
  if (terms != 1 && terms != 2) reject("terms: not 1 or 2");
  if (block_rows < 1) reject("block_rows: not positive");
  if (block_cols < 1 || block_cols % group != 0) reject("block_cols: not whole groups");
  const size_t groups = size_t(cols / group);
  Output<int8_t> values{size_t(rows), size_t(cols)}, low_values{size_t(rows), size_t(cols)};
  Output<float> scales{size_t(rows), groups};
  Output<int32_t> starts{size_t(rows), groups};
  Output<float> offsets{size_t(rows), groups};
  const QuantizedRows out{.values = values.data(),
                          .low_values = terms == 2 ? low_values.data() : nullptr,
                          .scales = scales.data(),
                          .starts = starts.data(),
                          .offsets = offsets.data(),
                          .rows = rows,
                          .cols = cols,
                          .group = int32_t(group)};
  {
    nb::gil_scoped_release unlocked;
    for_blocks(x, block_rows, block_cols, [&](const FloatRows& block, int32_t row, int32_t col) {
      table.quantize_rows(block, out, row, col);
    });
  }
  const nb::object low = terms == 2 ? nb::cast(low_values.release()) : nb::none();
  return nb::make_tuple(values.release(), low, scales.release(), starts.release(), offsets.release());
}

void check_tiles(const PackedMatrix& matrix, int tile_begin, int tile_end) {
  if (tile_begin < 0 || tile_begin > tile_end || tile_end > matrix.tiles())
    reject("tiles: not a range of tiles");
}

void linear_int8_array(const Input<uint8_t, 2>& packed, const std::string& weight_type, int64_t rows,
                       int64_t cols, int64_t group, const Input<int8_t, 2>& values,
                       const std::optional<Input<int8_t, 2>>& low_values, const Input<float, 2>& scales,
                       const Input<int32_t, 2>& starts, const Input<float, 2>& offsets,
                       const Strided<float>& y, const std::string& tier,
                       const std::optional<Input<float, 1>>& bias, bool accumulate, int tile_begin,
                       std::optional<int> tile_end, const Table& entries) {
  const PackedMatrix matrix = checked_matrix(packed, weight_type, rows, cols, group, entries);
  if (!matrix.is_integer()) reject("weight_type: '" + weight_type + "' has no int8 kernel");
  const KernelTable& table = tested_table(tier);
  const size_t batch = values.shape(0), groups = size_t(matrix.blocks());
  if (values.shape(1) != size_t(cols)) reject("values: not [batch, cols]");
  if (low_values && (low_values->shape(0) != batch || low_values->shape(1) != size_t(cols)))
    reject("low_values: not [batch, cols]");
  if (scales.shape(0) != batch || scales.shape(1) != groups) reject("scales: not [batch, cols // group]");
  if (starts.shape(0) != batch || starts.shape(1) != groups) reject("starts: not [batch, cols // group]");
  if (offsets.shape(0) != batch || offsets.shape(1) != groups) reject("offsets: not [batch, cols // group]");
  const QuantizedRows x{.values = const_cast<int8_t*>(values.data()),
                        .low_values = low_values ? const_cast<int8_t*>(low_values->data()) : nullptr,
                        .scales = const_cast<float*>(scales.data()),
                        .starts = const_cast<int32_t*>(starts.data()),
                        .offsets = const_cast<float*>(offsets.data()),
                        .rows = int32_t(batch),
                        .cols = matrix.cols,
                        .group = matrix.group};
  const LinearOutput out = checked_output(matrix, y, batch, bias, accumulate);
  const int end = tile_end.value_or(matrix.tiles());
  check_tiles(matrix, tile_begin, end);
  nb::gil_scoped_release unlocked;
  table.linear_int8(matrix, x, out, tile_begin, end);
}

// Returns bf16's bits as Bf16Rows has them.
auto round_rows_array(const Strided<const float>& x, const std::string& tier, int32_t block_rows,
                      int32_t block_cols) {
  const KernelTable& table = tested_table(tier);
  const auto rows = int32_t(x.shape(0)), cols = int32_t(x.shape(1));
  if (cols % Bf16Rows::kStepInputs != 0 || x.stride(1) != 1)
    reject("x: not [rows, a multiple of 32], contiguous along it");
  if (rows < 1 || block_rows < 1) reject("rows, block_rows: not positive");
  if (block_cols < 1 || block_cols % Bf16Rows::kStepInputs != 0) reject("block_cols: not a multiple of 32");
  Bf16Rows out(nullptr, rows, cols);
  Output<uint16_t> values{size_t(out.blocks()) * size_t(out.height), size_t(cols)};
  out.values = values.data();
  {
    nb::gil_scoped_release unlocked;
    std::fill_n(out.values, values.shape[0] * values.shape[1], uint16_t(0));
    for_blocks(x, block_rows, block_cols, [&](const FloatRows& block, int32_t row, int32_t col) {
      table.round_rows(block, out, row, col);
    });
  }
  return values.release();
}

void linear_bf16_array(const Input<uint8_t, 2>& packed, const std::string& weight_type, int64_t rows,
                       int64_t cols, int64_t group, const Input<uint16_t, 2>& values, const Strided<float>& y,
                       const std::string& tier, const std::optional<Input<float, 1>>& bias, bool accumulate,
                       int tile_begin, std::optional<int> tile_end, const Table& entries) {
  const PackedMatrix matrix = checked_matrix(packed, weight_type, rows, cols, group, entries);
  if (!matrix.is_integer()) reject("weight_type: '" + weight_type + "' has no bf16 kernel");
  const KernelTable& table = tested_table(tier);
  const Bf16Rows x(const_cast<uint16_t*>(values.data()), int32_t(y.shape(0)), matrix.cols);
  if (x.rows < 1 || values.shape(0) != size_t(x.blocks()) * size_t(x.height) ||
      values.shape(1) != size_t(cols)) {
    reject("values: not of round_rows for as many rows as y's");
  }
  const LinearOutput out = checked_output(matrix, y, y.shape(0), bias, accumulate);
  const int end = tile_end.value_or(matrix.tiles());
  check_tiles(matrix, tile_begin, end);
  nb::gil_scoped_release unlocked;
  table.linear_bf16(matrix, x, out, tile_begin, end);
}

// Into columns `col` on of rows of `out_cols`, which are 0 elsewhere; returns bf16's bits as Bf16Rows has
// them.
auto gate_up_bf16_array(const Input<uint8_t, 2>& gate, const Input<uint8_t, 2>& up,
                        const std::string& weight_type, int64_t rows, int64_t cols, int64_t group,
                        const Input<uint16_t, 2>& values, int32_t batch, const std::string& tier,
                        const std::optional<Input<float, 1>>& gate_bias,
                        const std::optional<Input<float, 1>>& up_bias, const Table& gate_table,
                        const Table& up_table, int32_t col, int32_t out_cols) {
  const KernelTable& table = tested_table(tier);
  GateUp layer{checked_matrix(gate, weight_type, rows, cols, group, gate_table),
               checked_matrix(up, weight_type, rows, cols, group, up_table),
               {},
               {}};
  if (!layer.gate.is_integer()) reject("weight_type: '" + weight_type + "' has no bf16 kernel");
  if (rows % kTileOutputs != 0) reject("rows: not a multiple of 32");
  const Bf16Rows x(const_cast<uint16_t*>(values.data()), batch, layer.gate.cols);
  if (batch < 1 || values.shape(0) != size_t(x.blocks()) * size_t(x.height) ||
      values.shape(1) != size_t(cols)) {
    reject("values: not of round_rows for so many rows");
  }
  if (col < 0 || col % Bf16Rows::kStepInputs != 0 || out_cols % Bf16Rows::kStepInputs != 0 ||
      out_cols - col < rows) {
    reject("col, out_cols: no room for the rows, or no multiples of 32");
  }
  for (const auto& bias : {&gate_bias, &up_bias}) {
    if (*bias && (*bias)->shape(0) != size_t(rows)) reject("bias: not [rows]");
  }
  std::vector<float> gates(size_t(batch) * size_t(rows)), ups(gates.size());
  layer.gates = {gates.data(), rows, gate_bias ? gate_bias->data() : nullptr};
  layer.ups = {ups.data(), rows, up_bias ? up_bias->data() : nullptr};
  Bf16Rows out(nullptr, batch, out_cols);
  Output<uint16_t> result{size_t(out.blocks()) * size_t(out.height), size_t(out_cols)};
  out.values = result.data();
  {
    nb::gil_scoped_release unlocked;
    std::fill_n(out.values, result.shape[0] * result.shape[1], uint16_t(0));
    table.gate_up_bf16(layer, x, out, col);
  }
  return result.release();
}

void linear_fp32_array(const Input<uint8_t, 2>& packed, const std::string& weight_type, int64_t rows,
                       int64_t cols, int64_t group, const Strided<const float>& x, const Strided<float>& y,
                       const std::string& tier, const std::optional<Input<float, 1>>& bias, bool accumulate,
                       int tile_begin, std::optional<int> tile_end, const Table& entries) {
  const PackedMatrix matrix = checked_matrix(packed, weight_type, rows, cols, group, entries);
  const KernelTable& table = tested_table(tier);
  if (x.shape(1) != size_t(cols) || x.stride(1) != 1)
    reject("x: not [batch, cols], contiguous along the last");
  const FloatRows in{x.data(), x.stride(0), int32_t(x.shape(0)), matrix.cols};
  const LinearOutput out = checked_output(matrix, y, x.shape(0), bias, accumulate);
  const int end = tile_end.value_or(matrix.tiles());
  check_tiles(matrix, tile_begin, end);
  nb::gil_scoped_release unlocked;
  table.linear_fp32(matrix, in, out, tile_begin, end);
}

nb::dict measure_compute_dict(int threads, const std::vector<int>& cpus) {
  ComputeLimits limits;
  {
    nb::gil_scoped_release unlocked;
    ThreadPool pool(threads, cpus);
    limits = measure_compute(pool);
  }
  nb::dict result;
  result["maddubs_macs_per_s"] = limits.maddubs_macs_per_s;
  result["vnni_macs_per_s"] = limits.vnni_macs_per_s;
  result["amx_int8_macs_per_s"] = limits.amx_int8_macs_per_s;
  result["amx_bf16_macs_per_s"] = limits.amx_bf16_macs_per_s;
  result["fma_fp32_macs_per_s"] = limits.fma_fp32_macs_per_s;
  return result;
}

nb::list pass_times(const std::vector<PassTime>& times) {
  nb::list result;
  for (const PassTime& time : times) result.append(nb::make_tuple(time.wall_s, time.cpu_s));
  return result;
}

nb::list time_read_list(size_t bytes, int repeats, size_t cold_bytes, bool huge_pages, int threads,
                        const std::vector<int>& cpus) {
  if (bytes < 1 || repeats < 1) reject("bytes, repeats: less than 1");
  std::vector<PassTime> times;
  {
    nb::gil_scoped_release unlocked;
    ThreadPool pool(threads, cpus);
    times = time_read(pool, bytes, repeats, cold_bytes, huge_pages);
  }
  return pass_times(times);
}

nb::list time_linear_list(const Input<uint8_t, 2>& packed, const std::string& weight_type, int64_t rows,
                          int64_t cols, int64_t group, const std::string& activations, int batch, int repeats,
                          size_t cold_bytes, bool huge_pages, int threads, const std::vector<int>& cpus,
                          const std::string& tier, const Table& entries) {
  const PackedMatrix matrix = checked_matrix(packed, weight_type, rows, cols, group, entries);
  const KernelTable& table = tested_table(tier);
  const Activations kind = activations_from_name(activations);
  if (kind != Activations::kFp32 && !matrix.is_integer()) reject("activations: int8 is for integer weights");
  if (batch < 1 || repeats < 1) reject("batch, repeats: less than 1");
  std::vector<PassTime> times;
  {
    nb::gil_scoped_release unlocked;
    ThreadPool pool(threads, cpus);
    times = time_linear(pool, table, matrix, kind, batch, repeats, cold_bytes, huge_pages);
  }
  return pass_times(times);
}

}  // namespace

void bind_linear_kernels(nb::module_& testing) {
  using nb::arg;
  testing.def("linear_tiers", &tested_table_names);
  testing.def("emulate_tdpbssd", &emulate_tdpbssd_array, arg("a"), arg("b"), arg("c"));
  testing.def("emulate_tdpbf16ps", &emulate_tdpbf16ps_array, arg("a"), arg("b"), arg("c"));
  testing.def("quantize_rows", &quantize_rows_array, arg("x"), arg("group"), arg("tier"), arg("terms") = 1,
              arg("block_rows") = 1 << 30, arg("block_cols") = 1 << 30);
  testing.def("linear_int8", &linear_int8_array, arg("packed"), arg("weight_type"), arg("rows"), arg("cols"),
              arg("group"), arg("values"), arg("low_values").none(), arg("scales"), arg("starts"),
              arg("offsets"), arg("y"), arg("tier"), nb::kw_only(), arg("bias") = nb::none(),
              arg("accumulate") = false, arg("tile_begin") = 0, arg("tile_end") = nb::none(),
              arg("table") = nb::none());
  testing.def("round_rows", &round_rows_array, arg("x"), arg("tier"), arg("block_rows") = 1 << 30,
              arg("block_cols") = 1 << 30);
  testing.def("linear_bf16", &linear_bf16_array, arg("packed"), arg("weight_type"), arg("rows"), arg("cols"),
              arg("group"), arg("values"), arg("y"), arg("tier"), nb::kw_only(), arg("bias") = nb::none(),
              arg("accumulate") = false, arg("tile_begin") = 0, arg("tile_end") = nb::none(),
              arg("table") = nb::none());
  testing.def("gate_up_bf16", &gate_up_bf16_array, arg("gate"), arg("up"), arg("weight_type"), arg("rows"),
              arg("cols"), arg("group"), arg("values"), arg("batch"), arg("tier"), nb::kw_only(),
              arg("gate_bias") = nb::none(), arg("up_bias") = nb::none(), arg("gate_table") = nb::none(),
              arg("up_table") = nb::none(), arg("col") = 0, arg("out_cols"));
  testing.def("linear_fp32", &linear_fp32_array, arg("packed"), arg("weight_type"), arg("rows"), arg("cols"),
              arg("group"), arg("x"), arg("y"), arg("tier"), nb::kw_only(), arg("bias") = nb::none(),
              arg("accumulate") = false, arg("tile_begin") = 0, arg("tile_end") = nb::none(),
              arg("table") = nb::none());
  testing.def("measure_compute", &measure_compute_dict, arg("threads"), arg("cpus"));
  testing.def("time_read", &time_read_list, arg("bytes"), arg("repeats"), arg("cold_bytes"),
              arg("huge_pages"), arg("threads"), arg("cpus"));
  testing.def("time_linear", &time_linear_list, arg("packed"), arg("weight_type"), arg("rows"), arg("cols"),
              arg("group"), arg("activations"), arg("batch"), arg("repeats"), arg("cold_bytes"),
              arg("huge_pages"), arg("threads"), arg("cpus"), arg("tier"), arg("table") = nb::none());
}

}  // namespace redoubt
