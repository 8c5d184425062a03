// Writes the packed layout (contract/packed_matrix.h): the one place that turns codes and floats into its
// bytes. Quantizes nothing and reads no file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "contract/packed_matrix.h"

namespace redoubt {

const char* weight_type_name(WeightType type);
// Throws std::invalid_argument for an unknown name.
WeightType weight_type_from_name(std::string_view name);

// Throws std::invalid_argument, naming what does not fit, unless the layout can hold such a matrix: sizes
// positive and below 2^31 bytes a tile, group 32, 64 or 128 and a divisor of cols (integers) or 0 (floats),
// cols even (bf16).
void check_packable(WeightType type, int64_t rows, int64_t cols, int64_t group);

// Gives a lut4 matrix its table; the others have none. Throws std::invalid_argument unless there are 16
// entries in -127 .. 127, or none.
void set_table(PackedMatrix& matrix, const std::vector<int64_t>& entries);

// `matrix` gives the shape, `out` holds matrix.bytes() bytes. codes: [rows][cols]; scales and minima: fp16
// bits [rows][cols / group]. Minima only for asym_int4. Throws std::invalid_argument for a code out of range:
// int4 and lut4 0 .. 15, int8 1 .. 255 (0 would stand for -128, which no quantizer here gives and the AVX2
// tier can't take).
void pack_int4(const PackedMatrix& matrix, const uint8_t* codes, const uint16_t* scales,
               const uint16_t* minima, uint8_t* out);
void pack_int8(const PackedMatrix& matrix, const uint8_t* codes, const uint16_t* scales, uint8_t* out);
// values: [rows][cols], to fp16 or bf16 (nearest even), or fp32.
void pack_float(const PackedMatrix& matrix, const float* values, uint8_t* out);

}  // namespace redoubt
