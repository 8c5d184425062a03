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
#include <tuple>
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

// Shapes of the tiles of sums, rows and columns, in this order, as (rows, bytes of a row).
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

// The same for TDPBF16PS; bf16 numbers are given as their bits.
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

// Calls take(block, row, col) for each block of block_rows x block_cols of x, as a step of the model does.
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

Range checked_tiles(const PackedMatrix& matrix, int begin, std::optional<int> end) {
  const Range tiles{begin, end.value_or(matrix.tiles())};
  if (tiles.begin < 0 || tiles.begin > tiles.end || tiles.end > matrix.tiles())
    reject("tiles: not a range of tiles");
  return tiles;
}

// What quantize_rows returns: values, low values, scales, starts, offsets.
using QuantizedArrays = std::tuple<Input<int8_t, 2>, std::optional<Input<int8_t, 2>>, Input<float, 2>,
                                   Input<int32_t, 2>, Input<float, 2>>;

QuantizedRows checked_quantized(const PackedMatrix& matrix, const QuantizedArrays& arrays) {
  const auto& [values, low_values, scales, starts, offsets] = arrays;
  const size_t batch = values.shape(0), cols = size_t(matrix.cols), groups = size_t(matrix.blocks());
  const auto check = [batch](const char* name, const auto& array, size_t width, const char* shape) {
    if (array.shape(0) != batch || array.shape(1) != width) reject(std::string(name) + ": not " + shape);
  };
  check("values", values, cols, "[batch, cols]");
  if (low_values) check("low_values", *low_values, cols, "[batch, cols]");
  check("scales", scales, groups, "[batch, cols // group]");
  check("starts", starts, groups, "[batch, cols // group]");
  check("offsets", offsets, groups, "[batch, cols // group]");
  return {.values = const_cast<int8_t*>(values.data()),
          .low_values = low_values ? const_cast<int8_t*>(low_values->data()) : nullptr,
          .scales = const_cast<float*>(scales.data()),
          .starts = const_cast<int32_t*>(starts.data()),
          .offsets = const_cast<float*>(offsets.data()),
          .rows = int32_t(batch),
          .cols = matrix.cols,
          .group = matrix.group};
}

// What round_rows returns for `batch` rows.
Bf16Rows checked_rounded(const PackedMatrix& matrix, const Input<uint16_t, 2>& values, size_t batch) {
  const Bf16Rows x(const_cast<uint16_t*>(values.data()), int32_t(batch), matrix.cols);
  if (x.rows < 1 || values.shape(0) != size_t(x.blocks()) * size_t(x.height) ||
      values.shape(1) != size_t(matrix.cols)) {
    reject("values: not of round_rows for so many rows");
  }
  return x;
}

void linear_int8_array(const BoundMatrix& packed, const QuantizedArrays& rows, const Strided<float>& y,
                       const std::string& tier, const std::optional<Input<float, 1>>& bias, bool accumulate,
                       int tile_begin, std::optional<int> tile_end) {
  const PackedMatrix& matrix = packed.of_integers("int8");
  const KernelTable& table = tested_table(tier);
  const QuantizedRows x = checked_quantized(matrix, rows);
  const LinearOutput out = checked_output(matrix, y, size_t(x.rows), bias, accumulate);
  const Range tiles = checked_tiles(matrix, tile_begin, tile_end);
  nb::gil_scoped_release unlocked;
  table.linear_int8(matrix, x, out, tiles.begin, tiles.end);
}

// Returns the bits of bf16 numbers in the layout of Bf16Rows.
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

void linear_bf16_array(const BoundMatrix& packed, const Input<uint16_t, 2>& values, const Strided<float>& y,
                       const std::string& tier, const std::optional<Input<float, 1>>& bias, bool accumulate,
                       int tile_begin, std::optional<int> tile_end) {
  const PackedMatrix& matrix = packed.of_integers("bf16");
  const KernelTable& table = tested_table(tier);
  const Bf16Rows x = checked_rounded(matrix, values, y.shape(0));
  const LinearOutput out = checked_output(matrix, y, y.shape(0), bias, accumulate);
  const Range tiles = checked_tiles(matrix, tile_begin, tile_end);
  nb::gil_scoped_release unlocked;
  table.linear_bf16(matrix, x, out, tiles.begin, tiles.end);
}

// Returns rows of out_cols outputs in the layout of Bf16Rows: the results from column `col` on, 0 elsewhere.
auto gate_up_bf16_array(const BoundMatrix& gate, const BoundMatrix& up, const Input<uint16_t, 2>& values,
                        int32_t batch, const std::string& tier,
                        const std::optional<Input<float, 1>>& gate_bias,
                        const std::optional<Input<float, 1>>& up_bias, int32_t col, int32_t out_cols) {
  const KernelTable& table = tested_table(tier);
  GateUp layer{gate.of_integers("bf16"), up.view(), {}, {}};
  const int32_t rows = layer.gate.rows;
  if (layer.up.type != layer.gate.type || layer.up.rows != rows || layer.up.cols != layer.gate.cols ||
      layer.up.group != layer.gate.group) {
    reject("up: not of the gate's type, shape and group");
  }
  if (rows % kTileOutputs != 0) reject("rows: not a multiple of 32");
  if (batch < 1) reject("batch: less than 1");
  const Bf16Rows x = checked_rounded(layer.gate, values, size_t(batch));
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

void linear_fp32_array(const BoundMatrix& packed, const Strided<const float>& x, const Strided<float>& y,
                       const std::string& tier, const std::optional<Input<float, 1>>& bias, bool accumulate,
                       int tile_begin, std::optional<int> tile_end) {
  const PackedMatrix& matrix = packed.view();
  const KernelTable& table = tested_table(tier);
  const FloatRows in = checked_rows(matrix, x);
  const LinearOutput out = checked_output(matrix, y, x.shape(0), bias, accumulate);
  const Range tiles = checked_tiles(matrix, tile_begin, tile_end);
  nb::gil_scoped_release unlocked;
  table.linear_fp32(matrix, in, out, tiles.begin, tiles.end);
}

nb::list pass_times(const std::vector<PassTime>& times) {
  nb::list result;
  for (const PassTime& time : times) result.append(nb::make_tuple(time.wall_s, time.cpu_s));
  return result;
}

nb::list time_linear_list(const BoundMatrix& packed, const std::string& activations, int batch, int repeats,
                          size_t cold_bytes, bool huge_pages, int threads, const std::vector<int>& cpus,
                          const std::string& tier) {
  const PackedMatrix& matrix = packed.view();
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
  testing.def("linear_int8", &linear_int8_array, arg("matrix"), arg("x"), arg("y"), arg("tier"),
              nb::kw_only(), arg("bias") = nb::none(), arg("accumulate") = false, arg("tile_begin") = 0,
              arg("tile_end") = nb::none());
  testing.def("round_rows", &round_rows_array, arg("x"), arg("tier"), arg("block_rows") = 1 << 30,
              arg("block_cols") = 1 << 30);
  testing.def("linear_bf16", &linear_bf16_array, arg("matrix"), arg("values"), arg("y"), arg("tier"),
              nb::kw_only(), arg("bias") = nb::none(), arg("accumulate") = false, arg("tile_begin") = 0,
              arg("tile_end") = nb::none());
  testing.def("gate_up_bf16", &gate_up_bf16_array, arg("gate"), arg("up"), arg("values"), arg("batch"),
              arg("tier"), nb::kw_only(), arg("gate_bias") = nb::none(), arg("up_bias") = nb::none(),
              arg("col") = 0, arg("out_cols"));
  testing.def("linear_fp32", &linear_fp32_array, arg("matrix"), arg("x"), arg("y"), arg("tier"),
              nb::kw_only(), arg("bias") = nb::none(), arg("accumulate") = false, arg("tile_begin") = 0,
              arg("tile_end") = nb::none());
  testing.def("time_linear", &time_linear_list, arg("matrix"), arg("activations"), arg("batch"),
              arg("repeats"), arg("cold_bytes"), arg("huge_pages"), arg("threads"), arg("cpus"), arg("tier"));
}

}  // namespace redoubt
