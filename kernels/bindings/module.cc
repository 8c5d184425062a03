// The Python module: checks and converts, calls, and does no arithmetic. The contract is
// _native/__init__.pyi.
#include "bindings/module.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>
#include <system_error>

#include "contract/attention.h"
#include "contract/kernel_table.h"
#include "contract/packed_matrix.h"
#include "machine/cpu.h"
#include "machine/numa.h"
#include "model/kv_cache.h"

namespace nb = nanobind;

namespace redoubt {

namespace {

// std::system_error reaches Python as the OSError of its errno.
void translate_system_error(const std::exception_ptr& exception, void*) {
  try {
    std::rethrow_exception(exception);
  } catch (const std::system_error& error) {
    nb::object value = nb::borrow(PyExc_OSError)(error.code().value(), error.what());
    PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(value.ptr())), value.ptr());
  }
}

std::vector<std::string> available_tier_names() {
  std::vector<std::string> names;
  for (Tier tier : available_tiers()) names.emplace_back(tier_name(tier));
  return names;
}

nb::tuple kv_type_names() {
  nb::list names;
  for (const NamedKvType& each : kKvTypes) names.append(each.name);
  return nb::tuple(names);
}

}  // namespace
}  // namespace redoubt

NB_MODULE(_native, module) {
  using namespace redoubt;
  module.doc() = "Redoubt's native engine; the contract is _native/__init__.pyi.";
  nb::register_exception_translator(translate_system_error);
  module.attr("PAGE_TOKENS") = kPageTokens;
  module.attr("KV_TYPES") = kv_type_names();
  module.attr("TILE_OUTPUTS") = kTileOutputs;
  module.def("available_tiers", &available_tier_names);
  module.def("default_tier", [] { return std::string(tier_name(default_tier())); });
  module.def("cpu_model", &cpu_model);
  module.def("is_intel_cpu", &is_intel_cpu);
  module.def("may_bind_memory", &may_bind_memory);
  module.def("bind_memory_to_node", &bind_memory_to_node, nb::arg("node"));
  module.def("interleave_memory", &interleave_memory, nb::arg("nodes"));
  bind_rates(module);
  bind_linear(module);
  bind_rounding(module);
  bind_sampling(module);
  bind_model(module);
#ifdef REDOUBT_TESTING
  bind_testing(module);
#endif
}
