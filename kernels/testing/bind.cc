// The submodule `testing`, and those of its functions that belong to no family of kernels: threads, and how
// work is divided.
#include "testing/bind.h"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <utility>
#include <vector>

#include "bindings/module.h"
#include "linear/row_passes.h"
#include "machine/shares.h"
#include "testing/measure.h"

namespace nb = nanobind;

namespace redoubt {
namespace {

// (fewest rows, most rows, number) of the passes. Throws unless they follow each other from row 0 to the
// last.
nb::tuple row_passes(int rows, int most) {
  int fewest = rows, largest = 0, passes = 0, next = 0;
  in_passes(rows, most, [&](int begin, int end) {
    if (begin != next) throw std::logic_error("a pass does not begin where the one before it ends");
    fewest = std::min(fewest, end - begin);
    largest = std::max(largest, end - begin);
    next = end;
    ++passes;
  });
  if (next != rows) throw std::logic_error("the passes do not end at the last row");
  return nb::make_tuple(fewest, largest, passes);
}

std::pair<int64_t, int64_t> share_of(int64_t count, int index, int shares) {
  const BasicRange<int64_t> range = share(count, index, shares);
  return {range.begin, range.end};
}

}  // namespace

void bind_testing(nb::module_& module) {
  nb::module_ testing = module.def_submodule("testing");
  testing.def("measure_barrier_ns", &measure_barrier_ns, nb::arg("threads"),
              nb::arg("cpus") = std::vector<int>{}, nb::arg("rounds") = 10000,
              nb::call_guard<nb::gil_scoped_release>());
  testing.def("row_passes", &row_passes, nb::arg("rows"), nb::arg("most"));
  testing.def("share", &share_of, nb::arg("count"), nb::arg("index"), nb::arg("shares"));
  bind_linear_kernels(testing);
  bind_row_kernels(testing);
  bind_weight_plans(testing);
  bind_step(testing);
  bind_kv_pages(testing);
  bind_delta(testing);
}

}  // namespace redoubt
