// The Python module: checks and converts, calls, and does no arithmetic. The contract is
// _native/__init__.pyi.
#include "bindings/module.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <system_error>

#include "contract/packed_matrix.h"
#include "machine/cpu.h"
#include "machine/numa.h"
#include "machine/thread_pool.h"
#include "model/kv_cache.h"

namespace nb = nanobind;

namespace redoubt {

const KernelTable& tested_table(const std::string& name) {
  if (name == kEvexAvxVnni) return evex_avx_vnni_table();
  if (name == kOtherAvx512Vnni) return other_avx512_vnni_table();
  return name == kEmulatedAmx ? emulated_amx_table() : kernel_table(tier_from_name(name));
}

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

// Nanoseconds per barrier of a pool, and proof that it is one: throws std::logic_error if a thread ever
// passes early.
double measure_barrier_ns(int threads, std::vector<int> cpus, int rounds) {
  ThreadPool pool(threads, std::move(cpus));
  std::vector<int> rounds_done(size_t(threads) * 16, 0);  // a cache line each
  std::atomic<bool> failed{false};
  const auto begin = std::chrono::steady_clock::now();
  pool.run([&](int thread) {
    const int next = (thread + 1) % threads;
    for (int round = 1; round <= rounds; ++round) {
      rounds_done[size_t(thread) * 16] = round;
      pool.barrier();
      if (rounds_done[size_t(next) * 16] < round) failed = true;
    }
  });
  const std::chrono::duration<double, std::nano> elapsed = std::chrono::steady_clock::now() - begin;
  if (failed) throw std::logic_error("a thread passed the barrier before the others had arrived");
  return elapsed.count() / rounds;
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
  module.def("bind_memory_to_node", &bind_memory_to_node, nb::arg("node"));
  module.def("interleave_memory", &interleave_memory, nb::arg("nodes"));
  module.def("measure_barrier_ns", &measure_barrier_ns, nb::arg("threads"),
             nb::arg("cpus") = std::vector<int>{}, nb::arg("rounds") = 10000,
             nb::call_guard<nb::gil_scoped_release>());
  bind_linear(module);
  bind_ops(module);
  bind_model(module);
}
