// Python's view of packing and of the linear kernels: checks shapes, releases the GIL, calls. No arithmetic.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

#include "bindings/linear.h"
#include "bindings/module.h"
#include "contract/kernel_table.h"
#include "machine/thread_pool.h"
#include "weights/pack.h"

namespace nb = nanobind;

namespace redoubt {
namespace {

PackedMatrix checked_shape(const std::string& weight_type, int64_t rows, int64_t cols, int64_t group) {
  const WeightType type = weight_type_from_name(weight_type);
  check_packable(type, rows, cols, group);
  return {.type = type, .rows = int32_t(rows), .cols = int32_t(cols), .group = int32_t(group)};
}

}  // namespace

BoundMatrix::BoundMatrix(Input<uint8_t, 2> packed, const std::string& weight_type, int64_t rows, int64_t cols,
                         int64_t group, const Table& table)
    : packed_(std::move(packed)), view_(checked_shape(weight_type, rows, cols, group)) {
  set_table(view_, table.value_or(std::vector<int64_t>()));
  if (packed_.shape(0) != size_t(view_.tiles()) || packed_.shape(1) != view_.tile_bytes()) {
    reject("packed: [" + std::to_string(packed_.shape(0)) + ", " + std::to_string(packed_.shape(1)) +
           "], not [" + std::to_string(view_.tiles()) + ", " + std::to_string(view_.tile_bytes()) + "]");
  }
  view_.data = packed_.data();
}

const PackedMatrix& BoundMatrix::aligned() const {
  if (reinterpret_cast<uintptr_t>(view_.data) % kAlignment != 0) reject("packed: not aligned to 64 bytes");
  return view_;
}

const PackedMatrix& BoundMatrix::of_integers(const char* kernel) const {
  if (!view_.is_integer()) reject("weight_type: '" + weight_type() + "' has no " + kernel + " kernel");
  return view_;
}

std::string BoundMatrix::weight_type() const { return weight_type_name(view_.type); }

FloatRows checked_rows(const PackedMatrix& matrix, const Strided<const float>& x) {
  if (x.shape(1) != size_t(matrix.cols) || x.stride(1) != 1)
    reject("x: not [batch, cols], contiguous along the last");
  return {x.data(), x.stride(0), int32_t(x.shape(0)), matrix.cols};
}

LinearOutput checked_output(const PackedMatrix& matrix, const Strided<float>& y, size_t batch,
                            const std::optional<Input<float, 1>>& bias, bool accumulate) {
  if (y.shape(0) != batch || y.shape(1) != size_t(matrix.rows) || y.stride(1) != 1) {
    reject("y: not [rows of x, rows of the matrix], contiguous along the last");
  }
  if (bias && bias->shape(0) != size_t(matrix.rows)) reject("bias: not [rows of the matrix]");
  return {y.data(), y.stride(0), bias ? bias->data() : nullptr, accumulate};
}

Activations activations_from_name(const std::string& name) {
  if (name == "int8") return Activations::kInt8;
  if (name == "int8_two_terms") return Activations::kInt8TwoTerms;
  if (name == "bf16") return Activations::kBf16;
  if (name != "fp32") reject("activations: not int8, int8_two_terms, bf16 or fp32");
  return Activations::kFp32;
}

namespace {

using Halves = nb::ndarray<nb::ro, nb::ndim<2>, nb::c_contig, nb::device::cpu>;  // float16, checked below

const uint16_t* checked_halves(const char* name, const Halves& values, const PackedMatrix& matrix) {
  if (values.dtype() != nb::dlpack::dtype{uint8_t(nb::dlpack::dtype_code::Float), 16, 1}) {
    reject(std::string(name) + ": not float16");
  }
  if (values.shape(0) != size_t(matrix.rows) || values.shape(1) != size_t(matrix.blocks())) {
    reject(std::string(name) + ": not [rows, cols // group]");
  }
  return static_cast<const uint16_t*>(values.data());
}

// Codes and scales give the shape: rows, cols, and a group of cols / groups inputs.
PackedMatrix shape_of_codes(WeightType type, const Input<uint8_t, 2>& codes, const Halves& scales) {
  const int64_t cols = int64_t(codes.shape(1)), groups = int64_t(scales.shape(1));
  if (groups == 0 || cols % groups != 0) reject("scales: not [rows, cols // group]");
  return checked_shape(weight_type_name(type), int64_t(codes.shape(0)), cols, cols / groups);
}

auto pack_int4_array(const Input<uint8_t, 2>& codes, const Halves& scales,
                     const std::optional<Halves>& minima) {
  const PackedMatrix matrix =
      shape_of_codes(minima ? WeightType::kAsymInt4 : WeightType::kSymInt4, codes, scales);
  const uint16_t* scale_bits = checked_halves("scales", scales, matrix);
  const uint16_t* minimum_bits = minima ? checked_halves("minima", *minima, matrix) : nullptr;
  Output<uint8_t> out(size_t(matrix.tiles()), matrix.tile_bytes());
  {
    nb::gil_scoped_release unlocked;
    pack_int4(matrix, codes.data(), scale_bits, minimum_bits, out.data());
  }
  return out.release();
}

auto pack_int8_array(const Input<uint8_t, 2>& codes, const Halves& scales) {
  const PackedMatrix matrix = shape_of_codes(WeightType::kInt8, codes, scales);
  const uint16_t* scale_bits = checked_halves("scales", scales, matrix);
  Output<uint8_t> out(size_t(matrix.tiles()), matrix.tile_bytes());
  {
    nb::gil_scoped_release unlocked;
    pack_int8(matrix, codes.data(), scale_bits, out.data());
  }
  return out.release();
}

auto pack_float_array(const Input<float, 2>& values, const std::string& weight_type) {
  if (PackedMatrix{.type = weight_type_from_name(weight_type)}.is_integer()) {
    reject("weight_type: '" + weight_type + "' is not fp16, bf16 or fp32");
  }
  const PackedMatrix matrix =
      checked_shape(weight_type, int64_t(values.shape(0)), int64_t(values.shape(1)), 0);
  Output<uint8_t> out(size_t(matrix.tiles()), matrix.tile_bytes());
  {
    nb::gil_scoped_release unlocked;
    pack_float(matrix, values.data(), out.data());
  }
  return out.release();
}

const KernelTable& table_named(const std::optional<std::string>& tier) {
  return kernel_table(tier ? tier_from_name(*tier) : default_tier());
}

auto dequantized(const BoundMatrix& packed, const std::optional<std::string>& tier) {
  const PackedMatrix& matrix = packed.view();
  const KernelTable& table = table_named(tier);
  Output<float> out{size_t(matrix.rows), size_t(matrix.cols)};
  {
    nb::gil_scoped_release unlocked;
    for (int32_t row = 0; row < matrix.rows; ++row) {
      table.dequantize_row(matrix, row, out.data() + size_t(row) * size_t(matrix.cols));
    }
  }
  return out.release();
}

// The 16 integers of lut4's table; none of the other types.
nb::object table_of(const BoundMatrix& packed) {
  const PackedMatrix& matrix = packed.view();
  if (matrix.type != WeightType::kLut4) return nb::none();
  nb::list entries;
  for (int8_t entry : matrix.table) entries.append(int(entry));
  return nb::tuple(entries);
}

// Linear layers on a thread pool of their own; calls from several threads take turns.
class LinearRunner {
 public:
  LinearRunner(int threads, const std::vector<int>& cpus) : pool_(threads, cpus) {}

  void run(const BoundMatrix& packed, const Strided<const float>& x, const Strided<float>& y,
           const std::optional<Input<float, 1>>& bias, const std::string& activations) {
    const PackedMatrix& matrix = packed.aligned();
    const Activations kind = activations_from_name(activations);
    if (kind != Activations::kFp32 && !matrix.is_integer())
      reject("activations: int8 is for integer weights");
    const FloatRows in = checked_rows(matrix, x);
    const LinearOutput out = checked_output(matrix, y, x.shape(0), bias, false);
    if (x.shape(0) == 0) return;
    const nb::gil_scoped_release unlocked;
    const std::lock_guard lock(mutex_);
    if (kind == Activations::kFp32) {
      pool_.run([&](int thread) {
        const Range tiles = share(matrix.tiles(), thread, pool_.threads());
        table_.linear_fp32(matrix, in, out, tiles.begin, tiles.end);
      });
      return;
    }
    const QuantizedRows quantized = quantized_rows(matrix, x.shape(0), kind == Activations::kInt8TwoTerms);
    pool_.run([&](int thread) {
      const Range part = share(in.rows, thread, pool_.threads());
      table_.quantize_rows({in.values + part.begin * in.stride, in.stride, part.end - part.begin, in.cols},
                           quantized, part.begin, 0);
      pool_.barrier();
      const Range tiles = share(matrix.tiles(), thread, pool_.threads());
      table_.linear_int8(matrix, quantized, out, tiles.begin, tiles.end);
    });
  }

 private:
  // Memory for a batch's quantized activations. It is kept between calls and grows.
  QuantizedRows quantized_rows(const PackedMatrix& matrix, size_t batch, bool two_terms) {
    const auto padded = [](size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; };
    const size_t values = padded(batch * size_t(matrix.cols));
    const size_t by_group = padded(batch * size_t(matrix.blocks()) * sizeof(float));
    const size_t needed = 2 * values + 3 * by_group;
    if (needed > bytes_) {
      memory_ = allocate_aligned(needed);
      bytes_ = needed;
    }
    std::byte* const begin = memory_.get();
    std::byte* const groups = begin + 2 * values;
    return {.values = reinterpret_cast<int8_t*>(begin),
            .low_values = two_terms ? reinterpret_cast<int8_t*>(begin + values) : nullptr,
            .scales = reinterpret_cast<float*>(groups),
            .starts = reinterpret_cast<int32_t*>(groups + by_group),
            .offsets = reinterpret_cast<float*>(groups + 2 * by_group),
            .rows = int32_t(batch),
            .cols = matrix.cols,
            .group = matrix.group};
  }

  const KernelTable& table_ = kernel_table(default_tier());
  ThreadPool pool_;
  std::mutex mutex_;
  AlignedBytes memory_;
  size_t bytes_ = 0;
};

size_t packed_bytes(const std::string& weight_type, int64_t rows, int64_t cols, int64_t group) {
  return checked_shape(weight_type, rows, cols, group).bytes();
}

}  // namespace

void bind_linear(nb::module_& module) {
  using nb::arg;
  module.def("packed_bytes", &packed_bytes, arg("weight_type"), arg("rows"), arg("cols"), arg("group"));
  module.def("pack_int4", &pack_int4_array, arg("codes"), arg("scales"), arg("minima").none());
  module.def("pack_int8", &pack_int8_array, arg("codes"), arg("scales"));
  module.def("pack_float", &pack_float_array, arg("values"), arg("weight_type"));

  nb::class_<BoundMatrix>(module, "PackedMatrix")
      .def(nb::init<Input<uint8_t, 2>, const std::string&, int64_t, int64_t, int64_t, const Table&>(),
           arg("packed").noconvert(), arg("weight_type"), arg("rows"), arg("cols"), arg("group"),
           arg("table") = nb::none())
      .def_prop_ro("weight_type", &BoundMatrix::weight_type)
      .def_prop_ro("rows", [](const BoundMatrix& self) { return self.view().rows; })
      .def_prop_ro("cols", [](const BoundMatrix& self) { return self.view().cols; })
      .def_prop_ro("group", [](const BoundMatrix& self) { return self.view().group; })
      .def_prop_ro("table", &table_of)
      .def_prop_ro("nbytes", [](const BoundMatrix& self) { return self.view().bytes(); })
      .def("dequantize", &dequantized, arg("tier") = nb::none());

  nb::class_<LinearRunner>(module, "LinearRunner")
      .def(nb::init<int, const std::vector<int>&>(), arg("threads"), arg("cpus") = std::vector<int>{})
      .def("run", &LinearRunner::run, arg("matrix"), arg("x"), arg("y"), nb::kw_only(),
           arg("bias") = nb::none(), arg("activations") = "int8");
}

}  // namespace redoubt
