// Python's view of the kernels of Gated DeltaNet: checks shapes, releases the GIL, calls. No arithmetic.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <optional>
#include <stdexcept>
#include <string>

#include "contract/delta.h"
#include "contract/kernel_table.h"
#include "machine/aligned_memory.h"
#include "testing/bind.h"

namespace nb = nanobind;

namespace redoubt {
namespace {

using Floats = nb::ndarray<float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using ConstFloats = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Matrix = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using ConstMatrix = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

void require(bool valid, const char* message) {
  if (!valid) throw std::invalid_argument(message);
}

const KernelTable& table_named(const std::string& tier) { return kernel_table(tier_from_name(tier)); }

void delta_page(const std::optional<ConstMatrix>& state, const ConstMatrix& keys, const Matrix& changes,
                const ConstFloats& decays, const ConstFloats& betas, const ConstMatrix& rows,
                const Matrix& outputs, const std::optional<Matrix>& end_state, int32_t begin,
                const std::string& tier) {
  const size_t key_dim = keys.shape(0), value_dim = changes.shape(1), count = rows.shape(0);
  require(key_dim <= kMostDeltaDim && keys.shape(1) == kPageTokens, "keys: not [key_dim, 32]");
  require(value_dim <= kMostDeltaDim && changes.shape(0) == kPageTokens, "changes: not [32, value_dim]");
  require(tier == "scalar" || value_dim % 16 == 0, "changes: value_dim is not a multiple of 16");
  require(!state || (state->shape(0) == key_dim && state->shape(1) == value_dim), "state: wrong shape");
  require(decays.shape(0) == kPageTokens, "decays: not [32]");
  require(begin >= 0 && count >= 1 && size_t(begin) + count <= kPageTokens, "begin: outside of the page");
  require(betas.shape(0) == count, "betas: not one a row");
  require(rows.shape(1) == 2 * key_dim + value_dim, "rows: not queries, keys and values");
  require(outputs.shape(0) == count && outputs.shape(1) == value_dim, "outputs: wrong shape");
  require(size_t(begin) + count < kPageTokens ||
              (end_state && end_state->shape(0) == key_dim && end_state->shape(1) == value_dim),
          "end_state: wrong shape");
  const DeltaPage page{.state = state ? state->data() : nullptr,
                       .keys = keys.data(),
                       .changes = changes.data(),
                       .decays = decays.data(),
                       .betas = betas.data(),
                       .query_rows = rows.data(),
                       .key_rows = rows.data() + key_dim,
                       .value_rows = rows.data() + 2 * key_dim,
                       .row_stride = int64_t(rows.shape(1)),
                       .outputs = outputs.data(),
                       .output_stride = int64_t(value_dim),
                       .end_state = end_state ? end_state->data() : nullptr,
                       .begin = begin,
                       .end = begin + int32_t(count),
                       .key_dim = int32_t(key_dim),
                       .value_dim = int32_t(value_dim)};
  const KernelTable& table = table_named(tier);
  const AlignedMemory<float> scratch(delta_scratch_floats(int(value_dim)));
  const nb::gil_scoped_release unlocked;
  table.delta_page(page, scratch.data());
}

void convolve_silu(const Matrix& rows, const ConstMatrix& history, const ConstMatrix& weights,
                   const std::string& tier) {
  const size_t channels = rows.shape(1), taps = weights.shape(0);
  require(channels <= kMostDeltaDim, "rows: too many channels");
  require(weights.shape(1) == channels && taps >= 1 && taps <= kMostTaps, "weights: not [taps, channels]");
  require(history.shape(0) == taps - 1 && (taps == 1 || history.shape(1) == channels),
          "history: not [taps - 1, channels]");
  table_named(tier).convolve_silu({.rows = rows.data(),
                                   .history = history.data(),
                                   .weights = weights.data(),
                                   .stride = int64_t(channels),
                                   .weight_stride = int64_t(channels),
                                   .count = int32_t(rows.shape(0)),
                                   .channels = int32_t(channels),
                                   .taps = int32_t(taps)});
}

void l2_normalize(const Floats& x, float factor, const std::string& tier) {
  table_named(tier).l2_normalize(x.data(), factor, int(x.shape(0)));
}

void gate_by_sigmoid(const ConstFloats& gate, const Floats& x, const std::string& tier) {
  require(gate.shape(0) == x.shape(0), "gate: not of x's shape");
  table_named(tier).gate_by_sigmoid(gate.data(), int(x.shape(0)), x.data());
}

}  // namespace

void bind_delta(nb::module_& testing) {
  testing.def("delta_page", &delta_page, nb::arg("state").none(), nb::arg("keys"),
              nb::arg("changes").noconvert(), nb::arg("decays"), nb::arg("betas"), nb::arg("rows"),
              nb::arg("outputs").noconvert(), nb::arg("end_state").none().noconvert(), nb::arg("begin"),
              nb::arg("tier"));
  testing.def("convolve_silu", &convolve_silu, nb::arg("rows").noconvert(), nb::arg("history"),
              nb::arg("weights"), nb::arg("tier"));
  testing.def("l2_normalize", &l2_normalize, nb::arg("x").noconvert(), nb::arg("factor"), nb::arg("tier"));
  testing.def("gate_by_sigmoid", &gate_by_sigmoid, nb::arg("gate"), nb::arg("x").noconvert(),
              nb::arg("tier"));
}

}  // namespace redoubt
