// Checks what Python passes for a linear layer: a packed matrix when it is made, the arrays with each call.
// Throws std::invalid_argument naming the argument. Multiplies nothing.
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

// Python's PackedMatrix: a matrix whose shape, type and table have been checked. It keeps the array with its
// bytes alive. Immutable, so threads may share it. The bytes may be at any address; a caller that multiplies
// in the engine's kernels takes aligned().
class BoundMatrix {
 public:
  BoundMatrix(Input<uint8_t, 2> packed, const std::string& weight_type, int64_t rows, int64_t cols,
              int64_t group, const Table& table);

  const PackedMatrix& view() const { return view_; }
  // The view. Throws unless its bytes begin at a multiple of kAlignment.
  const PackedMatrix& aligned() const;
  // The view. Throws unless its weights are integers; `kernel` names the activations' type in the message.
  const PackedMatrix& of_integers(const char* kernel) const;
  std::string weight_type() const;

 private:
  Input<uint8_t, 2> packed_;
  PackedMatrix view_;
};

// x: [batch, cols of the matrix], rows at any distance.
FloatRows checked_rows(const PackedMatrix& matrix, const Strided<const float>& x);
// y: [batch, rows of the matrix], rows at any distance; bias: [rows of the matrix].
LinearOutput checked_output(const PackedMatrix& matrix, const Strided<float>& y, size_t batch,
                            const std::optional<Input<float, 1>>& bias, bool accumulate);
Activations activations_from_name(const std::string& name);

}  // namespace redoubt
