// What Python hands over for a linear layer, checked: a packed matrix once, when it is made, and a call's
// arrays with each call. Throws std::invalid_argument naming the argument. Multiplies nothing.
#pragma once

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "bindings/arrays.h"
#include "contract/linear.h"

namespace redoubt {

using Table = std::optional<std::vector<int64_t>>;  // of lut4

[[noreturn]] inline void reject(const std::string& message) { throw std::invalid_argument(message); }

// Python's PackedMatrix: a matrix whose shape, type and table were checked, and the array that holds its
// bytes, which lives as long. Immutable, so threads may share it. The bytes may be at any address: who
// multiplies asks for aligned() first.
class BoundMatrix {
 public:
  BoundMatrix(Input<uint8_t, 2> packed, const std::string& weight_type, int64_t rows, int64_t cols,
              int64_t group, const Table& table);

  const PackedMatrix& view() const { return view_; }
  // The view, whose bytes must be at a multiple of kAlignment, as kernels require.
  const PackedMatrix& aligned() const;
  // The view for kernels of int8 or bf16 activations, of which floats have none.
  const PackedMatrix& of_integers(const char* kernel) const;
  std::string weight_type() const;

 private:
  Input<uint8_t, 2> packed_;
  PackedMatrix view_;
};

// x [batch, cols], rows at any distance.
FloatRows checked_rows(const PackedMatrix& matrix, const Strided<const float>& x);
// Where the outputs of `batch` rows go.
LinearOutput checked_output(const PackedMatrix& matrix, const Strided<float>& y, size_t batch,
                            const std::optional<Input<float, 1>>& bias, bool accumulate);
Activations activations_from_name(const std::string& name);

}  // namespace redoubt
