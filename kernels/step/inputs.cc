// Normalizes, quantizes and rounds rows (contract: step/inputs.h).
#include "step/inputs.h"

#include <algorithm>

namespace redoubt {
namespace {

// A part of quantized rows has a multiple of so many: most kernels take so many at once.
constexpr int kRowsTogether = 8;

}  // namespace

LinearInput Inputs::view(const InputRows& memory, RowCounts rows, int32_t cols,
                         std::initializer_list<const Linear*> users) const {
  LinearInput input;
  for (const Linear* linear : users) {
    input.quantized = context_.compute_type != ComputeType::kFp32 && linear->weight.is_integer();
  }
  const Bf16Uses& bf16 = context_.bf16;
  input.quantized_rows = rows.all;
  if (input.quantized && bf16.prompts) input.quantized_rows = rows.answers;
  if (input.quantized && bf16.all) input.quantized_rows = 0;
  for (const Linear* linear : users) {
    const int32_t group = linear->weight.group;
    if (linear->two_terms) {
      input.two_terms = memory.two_terms.view(input.quantized_rows, cols, group, true);
    } else {
      input.one_term = memory.one_term.view(input.quantized_rows, cols, group, false);
    }
  }
  input.rounded = Bf16Rows(memory.rounded.data(), rows.all - input.quantized_rows, cols);
  input.floats = {memory.floats.data(), cols, rows.all, cols};
  input.own_floats = memory.floats.data();
  return input;
}

LinearInput Inputs::prepare(const Source& source, RowCounts rows, int32_t cols, const Norm& norm,
                            std::initializer_list<const Linear*> users) {
  const bool is_private = rows.all <= kPrivateRows;
  const InputRows& memory = is_private ? team_.own().input : context_.workspace.input;
  LinearInput input = view(memory, rows, cols, users);
  if (!input.quantized && norm.weight == nullptr && source.row_index == nullptr) {
    input.floats = {source.first, source.stride, rows.all, cols};
    return input;
  }
  const auto fill_rows = [&](Range range) { fill(source, norm, input, range); };
  if (is_private) {
    team_.once([&] { fill_rows({0, rows.all}); });
  } else {
    team_.share(rows.all, fill_rows);
    team_.barrier();
  }
  return input;
}

FloatRows Inputs::normalized(const Source& source, int32_t rows, const Norm& norm) {
  const int32_t cols = context_.config.hidden_size;
  if (norm.weight == nullptr) return {source.first, source.stride, rows, cols};
  const bool is_private = rows <= kPrivateRows;
  float* const out = (is_private ? team_.own().input : context_.workspace.input).floats.data();
  const auto fill_rows = [&](Range range) {
    for (int64_t r = range.begin; r < range.end; ++r) {
      normalize(context_, norm, source.first + r * source.stride, out + r * cols);
    }
  };
  if (is_private) {
    team_.once([&] { fill_rows({0, rows}); });
  } else {
    team_.share(rows, fill_rows);
    team_.barrier();
  }
  return {out, cols, rows, cols};
}

// Some rows at a time: from the first-level cache, and many groups at once.
void Inputs::fill(const Source& source, const Norm& norm, const LinearInput& input, Range rows) {
  const int32_t cols = input.floats.cols;
  const int32_t most = int32_t(std::max<int64_t>(1, kNormalizedFloats / cols));
  for (int32_t begin = rows.begin; begin < rows.end; begin += most) {
    const int32_t end = std::min(begin + most, rows.end);
    FloatRows x{source.first + begin * source.stride, source.stride, end - begin, cols};
    if (norm.weight != nullptr || source.row_index != nullptr) {
      float* row = input.quantized ? team_.own().rows.data() : input.own_floats + int64_t(begin) * cols;
      x.values = row;
      x.stride = cols;
      for (int32_t r = begin; r < end; ++r, row += cols) {
        const float* from =
            source.first + (source.row_index != nullptr ? source.row_index[r] : r) * source.stride;
        if (norm.weight != nullptr) {
          normalize(context_, norm, from, row);
        } else {
          std::copy_n(from, cols, row);
        }
      }
      if (!input.quantized) continue;
    }
    take_rows(x, input, begin, 0);
  }
}

void Inputs::take_rows(const FloatRows& x, const LinearInput& input, int32_t row, int32_t col) const {
  if (!input.quantized) {
    for (int32_t r = 0; r < x.rows; ++r) {
      std::copy_n(x.values + r * x.stride, x.cols,
                  input.own_floats + int64_t(row + r) * input.floats.stride + col);
    }
    return;
  }
  const int32_t quantized = std::clamp(input.quantized_rows - row, 0, x.rows);
  if (quantized > 0) {
    const FloatRows part{x.values, x.stride, quantized, x.cols};
    for (const QuantizedRows* integers : {&input.one_term, &input.two_terms}) {
      if (integers->values != nullptr) context_.kernels.quantize_rows(part, *integers, row, col);
    }
  }
  if (quantized < x.rows) {
    const FloatRows part{x.values + quantized * x.stride, x.stride, x.rows - quantized, x.cols};
    context_.kernels.round_rows(part, input.rounded, row + quantized - input.quantized_rows, col);
  }
}

LinearInput LinearInput::part(RowPart part) const {
  LinearInput result = *this;
  if (rounded.rows > 0) {
    const int blocks = rounded.blocks(), rows = quantized_rows + rounded.rows;
    const auto blocks_before = [&](int index) {
      const int first = share(rows, index, part.count).begin - quantized_rows;
      return index == part.count ? blocks : std::clamp(first / rounded.height, 0, blocks);
    };
    const int begin = blocks_before(part.index);
    result.rounded = rounded.part(begin, blocks_before(part.index + 1));
    if (part.index > 0) {
      result.first_row = quantized_rows + begin * rounded.height;
      result.quantized_rows = 0;
    }
  } else {
    const int units = (quantized_rows + kRowsTogether - 1) / kRowsTogether;
    const Range whole = share(units, part.index, part.count);
    const int begin = whole.begin * kRowsTogether, end = std::min(whole.end * kRowsTogether, quantized_rows);
    if (one_term.values != nullptr) result.one_term = one_term.part(begin, end);
    if (two_terms.values != nullptr) result.two_terms = two_terms.part(begin, end);
    result.first_row = begin;
    result.quantized_rows = end - begin;
  }
  result.floats.rows = result.quantized_rows + result.rounded.rows;
  return result;
}

}  // namespace redoubt
