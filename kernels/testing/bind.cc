// The submodule itself, and what belongs to no family of kernels.
#include "testing/bind.h"

#include <nanobind/stl/vector.h>

#include <vector>

#include "testing/measure.h"

namespace nb = nanobind;

namespace redoubt {

void bind_testing(nb::module_& module) {
  nb::module_ testing = module.def_submodule("testing");
  testing.def("measure_barrier_ns", &measure_barrier_ns, nb::arg("threads"),
              nb::arg("cpus") = std::vector<int>{}, nb::arg("rounds") = 10000,
              nb::call_guard<nb::gil_scoped_release>());
  bind_linear_kernels(testing);
  bind_row_kernels(testing);
  bind_weight_plans(testing);
}

}  // namespace redoubt
