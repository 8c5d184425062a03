// Converts rows of activations to the form that matrix products take: fp32, quantized to int8, or rounded to
// bf16. Knows no layer and no stage.
#pragma once

#include <cstdint>
#include <initializer_list>

#include "contract/linear.h"
#include "step/context.h"
#include "step/team.h"

namespace redoubt {

// Rows as linear kernels take them: in fp32; or the first ones quantized to one term or two, and the rest,
// prompts' or all, rounded to bf16.
struct LinearInput {
  bool quantized = false;  // or rounded
  QuantizedRows one_term;  // empty where no user takes one term
  QuantizedRows two_terms;
  Bf16Rows rounded;
  FloatRows floats;
  // `floats` if take_rows writes rows there; null if they are elsewhere already.
  float* own_floats = nullptr;
  int32_t quantized_rows = 0;
  int32_t first_row = 0;  // of a part, counted from the whole's

  int32_t rows() const { return floats.rows; }
  // A part of a quantized input; `floats` has only the number of its rows. If rows are rounded, part 0 has
  // all quantized ones. A part may be empty.
  LinearInput part(RowPart part) const;
};

class Inputs {
 public:
  // Rows of fp32 in memory, one after another or by an index.
  struct Source {
    const float* first;
    int64_t stride;  // floats
    const int32_t* row_index =
        nullptr;  // row r is at first + row_index[r] * stride; null: at first + r * stride
  };

  Inputs(const StepContext& context, Team& team) : context_(context), team_(team) {}

  // Normalizes rows (if there is a norm) and converts them to the form that `users`, the matrices that take
  // them, need. With more than kPrivateRows rows the threads share that work, and meet at a barrier.
  LinearInput prepare(const Source& source, RowCounts rows, int32_t cols, const Norm& norm,
                      std::initializer_list<const Linear*> users);
  // Normalized rows in fp32, likewise.
  FloatRows normalized(const Source& source, int32_t rows, const Norm& norm);
  // An empty input in `memory`, in the form for `users`; take_rows fills it, from any thread.
  LinearInput view(const InputRows& memory, RowCounts rows, int32_t cols,
                   std::initializer_list<const Linear*> users) const;
  // Writes x, which are the input's rows from `row` and columns from `col` on, in the input's form.
  void take_rows(const FloatRows& x, const LinearInput& input, int32_t row, int32_t col) const;

 private:
  void fill(const Source& source, const Norm& norm, const LinearInput& input, Range rows);

  const StepContext& context_;
  Team& team_;
};

}  // namespace redoubt
