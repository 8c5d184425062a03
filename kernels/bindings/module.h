// The parts of the Python module, one function per family. Each is defined beside what it binds.
#pragma once

#include <nanobind/nanobind.h>

namespace redoubt {

void bind_rates(nanobind::module_& module);     // measure_compute, time_read
void bind_linear(nanobind::module_& module);    // packing, LinearRunner
void bind_rounding(nanobind::module_& module);  // the choice of codes
void bind_sampling(nanobind::module_& module);  // Sampler, and the readers of prompts
void bind_model(nanobind::module_& module);     // Model, PackedFileError

// The submodule `testing`, in testing/bind.cc; not in wheels.
void bind_testing(nanobind::module_& module);

}  // namespace redoubt
