// Integer weights as bf16, in the layout that tiles take. Included inside linear/bf16_amx-inl.h's namespace
// and target region; knows no tiles.
//
// With few rows, unpacking takes most of the time. So weights are scaled in fp16, 32 with one operation, and
// become bf16 by shifting their bits (contract/kernel_table.h). The tiles multiply at the same time. Figures:
// docs/tuning.md.

constexpr int kColumns = 2;                         // of 16 outputs in a tile of outputs
constexpr int kStepInputs = Bf16Rows::kStepInputs;  // of one product
// A step's products are issued in this many parts while the next group is unpacked.
constexpr int kStepParts = 8;

// Weights of 32 inputs in the tiles' layout: pairs of inputs by outputs.
using WeightTiles = uint16_t[kColumns][kStepInputs / 2][kTileRows][2];

REDOUBT_INLINE __m512i all_fp16(float value) { return _mm512_set1_epi16(int16_t(exact_fp16(value))); }

// The values of the 16 codes before scale and minimum, in fp16, for look_up. lut4: the 16 values, twice.
// sym_int4 and asym_int4: only the upper bytes, because the lower ones are 0, four times. int8: not used.
template <WeightType kType>
REDOUBT_INLINE __m512i code_values(const PackedMatrix& w) {
  if constexpr (kType == WeightType::kInt8) return _mm512_setzero_si512();
  const __m512i codes = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  const __m512i values = kType == WeightType::kLut4 ? _mm512_cvtepi8_epi32(load_table(w))
                                                    : _mm512_sub_epi32(codes, _mm512_set1_epi32(8));
  const __m256i halves = _mm512_cvtps_ph(_mm512_cvtepi32_ps(values), _MM_FROUND_TO_NEAREST_INT);
  if constexpr (kType == WeightType::kLut4) return _mm512_broadcast_i64x4(halves);
  return _mm512_broadcast_i32x4(_mm256_cvtepi16_epi8(_mm256_srli_epi16(halves, 8)));
}

// Lines of codes of one step and one column of 16 outputs, and pairs of inputs in a line.
constexpr int step_lines(WeightType type) { return type == WeightType::kInt8 ? 8 : 4; }
constexpr int line_pairs(WeightType type) { return kStepInputs / 2 / step_lines(type); }

// The place of a line's i-th pair among the step's pairs: of each eight inputs the even ones come first
// (Bf16Rows).
template <WeightType kType>
constexpr int place_of_pair(int line, int i) {
  return kType == WeightType::kInt8 ? line / 2 * 4 + line % 2 + 2 * i : line * 4 + i;
}

// The values of the i-th pair of a line, in fp16. An output's codes are two 16-bit words: with 4 bits their
// nibbles are inputs 0 4 1 5 and 2 6 3 7, with int8 their bytes are inputs 0 1 and 2 3.
template <WeightType kType, typename Lanes>
REDOUBT_INLINE __m512i look_up(__m512i codes, __m512i values, int i) {
  if constexpr (kType == WeightType::kInt8) {
    // ORing a byte into the bits of 1024 gives 1024 + byte, as the last bit of such a number is worth one.
    // 0xea: (first & second) | third.
    const __m512i bytes = i == 0 ? codes : _mm512_srli_epi16(codes, 8);
    const __m512i sums = _mm512_ternarylogic_epi64(bytes, _mm512_set1_epi16(0xff), all_fp16(1024.0f), 0xea);
    return Lanes::multiply_add(sums, all_fp16(1.0f), all_fp16(-1024.0f - 128.0f));
  }
  if constexpr (kType == WeightType::kLut4) {
    return _mm512_permutexvar_epi16(i == 0 ? codes : _mm512_srli_epi16(codes, 4 * i), values);
  }
  // Moves the nibble to the lower half of the upper byte, with few operations on one port.
  const __m512i swapped_bytes =
      _mm512_broadcast_i32x4(_mm_set_epi64x(0x0e0f0c0d0a0b0809, 0x0607040502030001));
  const __m512i index = i == 0   ? _mm512_shuffle_epi8(codes, swapped_bytes)
                        : i == 1 ? _mm512_slli_epi16(codes, 4)
                        : i == 2 ? codes
                                 : _mm512_srli_epi16(codes, 4);
  return _mm512_maskz_permutexvar_epi8(0xaaaaaaaaaaaaaaaa, index, values);
}

// fp16 numbers, clamped to -limit .. limit. limit: the bits of a finite number.
REDOUBT_INLINE __m512i clamp_fp16(__m512i halves, uint16_t limit) {
  const __m512i sign = _mm512_set1_epi16(-0x8000);
  const __m512i magnitude =
      _mm512_min_epu16(_mm512_andnot_si512(sign, halves), _mm512_set1_epi16(int16_t(limit)));
  return _mm512_ternarylogic_epi64(magnitude, halves, sign, 0xf8);  // magnitude | (halves & sign)
}

// The 16 fp16 numbers of a column, of 32, each twice.
REDOUBT_INLINE __m512i twice(__m512i halves, int column) {
  const __m512i lanes = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  const __m512i index = _mm512_add_epi16(_mm512_or_si512(lanes, _mm512_slli_epi32(lanes, 16)),
                                         _mm512_set1_epi16(int16_t(16 * column)));
  return _mm512_permutexvar_epi16(index, halves);
}

// Unpacks a group of a tile's weights. values: of code_values. between(step, i) is called for i = 0 ..
// kStepParts while the step's inputs are unpacked.
template <WeightType kType, int kGroup, Prefetch kDistance, typename Lanes, typename Between>
REDOUBT_INLINE void unpack(const uint8_t* block, __m512i values, WeightTiles* tiles, const Between& between) {
  constexpr bool kHasMinima = kType == WeightType::kAsymInt4;
  constexpr int kSteps = kGroup / kStepInputs, kLines = kColumns * step_lines(kType);  // of a step
  const uint8_t* const halves = block + kSteps * kLines * 64;
  const __m512i factor = all_fp16(kBf16WeightFactor);
  const __m512i scales =
      Lanes::multiply(clamp_fp16(_mm512_loadu_si512(halves), largest_bf16_scale(kType)), factor);
  __m512i minima = _mm512_setzero_si512();
  if constexpr (kHasMinima) {
    minima = Lanes::multiply(clamp_fp16(_mm512_loadu_si512(halves + 64), kLargestBf16Minimum), factor);
    minima = Lanes::multiply_add(scales, all_fp16(8.0f), minima);
  }
  const __m512i column_scales[] = {twice(scales, 0), twice(scales, 1)};
  const __m512i column_minima[] = {twice(minima, 0), twice(minima, 1)};
  for (int step = 0; step < kSteps; ++step, block += kLines * 64) {
#pragma GCC unroll 16
    for (int i = 0; i < kLines; ++i) {
      const int line = i / kColumns, column = i % kColumns;
      prefetch_weights<kDistance>(block + i * 64);
      const __m512i codes = load_codes(block + i * 64);
      const auto unpack_pair = [&](int pair) __attribute__((always_inline)) {
        const __m512i value = look_up<kType, Lanes>(codes, values, pair);
        const __m512i weight = kHasMinima
                                   ? Lanes::multiply_add(value, column_scales[column], column_minima[column])
                                   : Lanes::multiply(value, column_scales[column]);
        _mm512_store_si512(
            tiles[step][column][place_of_pair<kType>(line, pair)],
            _mm512_and_si512(_mm512_srai_epi16(weight, 3), _mm512_set1_epi16(int16_t(0x8fff))));
      };
      unpack_pair(0);
      unpack_pair(1);
      if constexpr (line_pairs(kType) == 4) {
        unpack_pair(2);
        unpack_pair(3);
      }
      if (i * kStepParts % kLines == 0) between(step, i * kStepParts / kLines);
    }
  }
  for (int i = 0; i < (kHasMinima ? 2 : 1); ++i) prefetch_weights<kDistance>(halves + 64 * i);
}
