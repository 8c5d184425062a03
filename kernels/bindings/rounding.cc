// Python's view of the choice of codes: checks shapes, releases the GIL, calls. No arithmetic.
#include "contract/rounding.h"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include <algorithm>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>

#include "bindings/arrays.h"
#include "bindings/module.h"
#include "contract/kernel_table.h"

namespace nb = nanobind;

namespace redoubt {
namespace {

using Floats = Input<float, 2>;

void check(const char* name, const Floats& array, size_t rows, size_t cols) {
  if (array.shape(0) == rows && array.shape(1) == cols) return;
  throw std::invalid_argument(std::string(name) + ": [" + std::to_string(array.shape(0)) + ", " +
                              std::to_string(array.shape(1)) + "], not [" + std::to_string(rows) + ", " +
                              std::to_string(cols) + "]");
}

LevelGrid grid_of(const Input<float, 1>& levels) {
  if (levels.shape(0) != kLevels) throw std::invalid_argument("levels: not 16");
  LevelGrid grid;
  std::copy_n(levels.data(), kLevels, grid.levels);
  grid.is_even = true;
  for (int i = 0; i + 1 < kLevels; ++i) {
    const float step = grid.levels[i + 1] - grid.levels[i];
    if (!(step > 0.0f)) throw std::invalid_argument("levels: not rising");
    grid.middles[i] = (grid.levels[i] + grid.levels[i + 1]) / 2;
    grid.is_even = grid.is_even && step == 1.0f;
  }
  return grid;
}

const KernelTable& table_of(const std::optional<std::string>& tier) {
  return kernel_table(tier ? tier_from_name(*tier) : default_tier());
}

auto round_group(const Floats& weights, const Floats& wanted, const Floats& feedback,
                 const Input<float, 1>& power, const Floats& scales, const Floats& minima,
                 const Input<float, 1>& levels, const std::optional<std::string>& tier) {
  const size_t inputs = weights.shape(0), rows = weights.shape(1), candidates = scales.shape(0);
  check("wanted", wanted, inputs, rows);
  check("feedback", feedback, inputs, inputs);
  check("scales", scales, std::max<size_t>(candidates, 1), rows);
  check("minima", minima, candidates, rows);
  if (power.shape(0) != inputs) throw std::invalid_argument("power: not one number an input");
  const KernelTable& table = table_of(tier);
  Output<uint8_t> codes(inputs, rows);
  Output<float> errors(inputs, rows), scratch(inputs, kRoundingScratchFloats);
  Output<int32_t> best(1, rows);
  const GroupRounding task{.grid = grid_of(levels),
                           .inputs = int(inputs),
                           .rows = int64_t(rows),
                           .candidates = int(candidates),
                           .weights = weights.data(),
                           .wanted = wanted.data(),
                           .feedback = feedback.data(),
                           .power = power.data(),
                           .scales = scales.data(),
                           .minima = minima.data(),
                           .scratch = scratch.data(),
                           .best = best.data(),
                           .codes = codes.data(),
                           .errors = errors.data()};
  {
    nb::gil_scoped_release unlocked;
    table.round_group(task);
  }
  return std::make_tuple(codes.release(), errors.release(), best.release());
}

auto descend_group(const Input<uint8_t, 2>& codes, const Floats& pull, const Floats& own,
                   const Input<float, 1>& scales, const Input<float, 1>& minima,
                   const Input<float, 1>& levels, const std::optional<std::string>& tier) {
  const size_t inputs = codes.shape(0), rows = codes.shape(1);
  check("pull", pull, inputs, rows);
  check("own", own, inputs, inputs);
  if (scales.shape(0) != rows || minima.shape(0) != rows) {
    throw std::invalid_argument("scales, minima: not one number a row");
  }
  const KernelTable& table = table_of(tier);
  Output<uint8_t> after(inputs, rows);
  std::copy_n(codes.data(), inputs * rows, after.data());
  if (std::any_of(after.data(), after.data() + inputs * rows, [](uint8_t code) { return code >= kLevels; })) {
    throw std::invalid_argument("codes: not in 0..15");
  }
  Output<float> changes(inputs, rows), scratch(inputs, kRoundingScratchFloats);
  const GroupDescent task{.grid = grid_of(levels),
                          .inputs = int(inputs),
                          .rows = int64_t(rows),
                          .own = own.data(),
                          .pull = pull.data(),
                          .scales = scales.data(),
                          .minima = minima.data(),
                          .scratch = scratch.data(),
                          .codes = after.data(),
                          .changes = changes.data()};
  {
    nb::gil_scoped_release unlocked;
    table.descend_group(task);
  }
  return std::make_tuple(after.release(), changes.release());
}

}  // namespace

void bind_rounding(nb::module_& module) {
  module.def("round_group", &round_group, nb::arg("weights"), nb::arg("wanted"), nb::arg("feedback"),
             nb::arg("power"), nb::arg("scales"), nb::arg("minima"), nb::arg("levels"),
             nb::arg("tier") = nb::none());
  module.def("descend_group", &descend_group, nb::arg("codes"), nb::arg("pull"), nb::arg("own"),
             nb::arg("scales"), nb::arg("minima"), nb::arg("levels"), nb::arg("tier") = nb::none());
}

}  // namespace redoubt
