// Python's view of the machine's rates: checks, releases the GIL, calls.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "bindings/module.h"
#include "machine/rates.h"
#include "machine/thread_pool.h"

namespace nb = nanobind;

namespace redoubt {
namespace {

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

double sustained(const std::string& instruction, double duration_s, int threads,
                 const std::vector<int>& cpus) {
  nb::gil_scoped_release unlocked;
  ThreadPool pool(threads, cpus);
  return sustained_macs_per_s(pool, instruction, duration_s);
}

nb::list pass_times(const std::vector<PassTime>& times) {
  nb::list result;
  for (const PassTime& time : times) result.append(nb::make_tuple(time.wall_s, time.cpu_s));
  return result;
}

nb::list time_read_list(size_t bytes, int repeats, size_t cold_bytes, bool huge_pages, int threads,
                        const std::vector<int>& cpus) {
  if (bytes < 1 || repeats < 1) throw std::invalid_argument("bytes, repeats: less than 1");
  std::vector<PassTime> times;
  {
    nb::gil_scoped_release unlocked;
    ThreadPool pool(threads, cpus);
    times = time_read(pool, bytes, repeats, cold_bytes, huge_pages);
  }
  return pass_times(times);
}

}  // namespace

void bind_rates(nb::module_& module) {
  using nb::arg;
  module.def("measure_compute", &measure_compute_dict, arg("threads"), arg("cpus"));
  module.def("sustained_macs_per_s", &sustained, arg("instruction"), arg("duration_s"), arg("threads"),
             arg("cpus"));
  module.def("time_read", &time_read_list, arg("bytes"), arg("repeats"), arg("cold_bytes"), arg("huge_pages"),
             arg("threads"), arg("cpus"));
}

}  // namespace redoubt
