// The parts of the Python module's submodule `testing`; its contract is _native/testing.pyi.
#pragma once

#include <nanobind/nanobind.h>

namespace redoubt {

void bind_linear_kernels(nanobind::module_& testing);
void bind_row_kernels(nanobind::module_& testing);
void bind_weight_plans(nanobind::module_& testing);
void bind_step(nanobind::module_& testing);
void bind_kv_pages(nanobind::module_& testing);
void bind_delta(nanobind::module_& testing);

}  // namespace redoubt
