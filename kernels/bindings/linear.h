// Checks of what Python hands over for a linear layer. Throws std::invalid_argument naming the argument.
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

// A view of `packed`, which must have the shape and bytes of such a matrix.
PackedMatrix checked_matrix(const Input<uint8_t, 2>& packed, const std::string& weight_type, int64_t rows,
                            int64_t cols, int64_t group, const Table& table);
// Where the outputs of `batch` rows go.
LinearOutput checked_output(const PackedMatrix& matrix, const Strided<float>& y, size_t batch,
                            const std::optional<Input<float, 1>>& bias, bool accumulate);
Activations activations_from_name(const std::string& name);

}  // namespace redoubt
