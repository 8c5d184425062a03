// Weights of 8 bits (int8 codes, lut4's entries) times int8 activations of one term or two with AVX2 or with
// AVX-512 without VNNI. Both factors are widened to 16 bits, where vpmaddwd multiplies pairs and adds them up
// exactly, so a second term costs nothing. vpmaddubsw is no alternative: its sums of two such products
// saturate, so it would need the signs of each row's activations moved to the weights, and another
// instruction to widen the sums.
//
// Included inside the tier's namespace and target region, after simd/vector_*-inl.h and
// linear/integers_*-inl.h.

// Sums of more rows do not fit the registers with AVX2, and are no faster with AVX-512 (docs/tuning.md).
constexpr int most_rows(WeightType type) { return kLanes == 16 ? 8 : type == WeightType::kLut4 ? 4 : 6; }
constexpr int kColumns = kTileOutputs / kLanes;
constexpr int kPairColumns = 2;  // at once in passes of several rows

static_assert(int64_t(128) * 255 * 32512 < int64_t(1) << 31, "sums of the largest group fit");

// With AVX-512 few rows of int8 are fastest with the hardware's own prefetching.
constexpr Prefetch prefetch_for(WeightType type, int rows) {
  if (rows > 4) return Prefetch::kFar;
  return kLanes == 16 && type == WeightType::kInt8 ? Prefetch::kNone : Prefetch::kNear;
}

__m128i load_inputs(const int8_t* inputs) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(inputs));
}

// IntegerKernels::fill. Of every four inputs the first and the third come first, because one instruction
// takes these two bytes out of a word of weights.
void fill(const QuantizedRows& x, int row, int rows, int first_group, int groups, int8_t* inputs,
          int32_t* starts) {
  const __m256i pairs =
      _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15));
  for (int r = 0; r < rows; ++r) {
    const int64_t group = int64_t(row + r) * (x.cols / x.group) + first_group, value = group * x.group;
    int8_t* to = inputs + r * 8;
    for (int k = 0; k < groups * x.group; k += 16) {
      __m256i words = _mm256_cvtepi8_epi16(load_inputs(x.values + value + k));
      if (x.low_values != nullptr) {
        const __m256i low = _mm256_cvtepi8_epi16(load_inputs(x.low_values + value + k));
        words = _mm256_add_epi16(_mm256_slli_epi16(words, 8), low);
      }
      alignas(32) int64_t fours[4];
      _mm256_store_si256(reinterpret_cast<__m256i*>(fours), _mm256_shuffle_epi8(words, pairs));
      for (const int64_t four : fours) {
        __builtin_memcpy(to, &four, 8);
        to += rows * 8;
      }
    }
    // Weights are multiplied as 0 .. 255, so the zero point is 128.
    for (int j = 0; j < groups; ++j) starts[j * rows + r] = 16 * x.starts[group + j];
  }
}

// Adds dot products of four inputs.
template <int kRows, int kWidth>
REDOUBT_INLINE void add_products(const Bits (&weights_u8)[kWidth], const int8_t* inputs,
                                 Bits (&dot)[kRows][kWidth]) {
#pragma GCC unroll 2
  for (int half = 0; half < 2; ++half) {
    Bits pairs_u16[kWidth];
#pragma GCC unroll 4
    for (int c = 0; c < kWidth; ++c) {
      pairs_u16[c] =
          half == 0 ? and_bits(weights_u8[c], set_words(255)) : shift_words_right<8>(weights_u8[c]);
    }
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const Bits x = broadcast_word(inputs + r * 8 + half * 4);
#pragma GCC unroll 4
      for (int c = 0; c < kWidth; ++c) dot[r][c] = add_dot(dot[r][c], pairs_u16[c], x);
    }
  }
}

// Adds dot products of a group of inputs.
template <WeightType kType, int kRows, int kWidth>
REDOUBT_INLINE void add_group(const uint8_t* codes, Bits table, const int8_t* inputs, int group,
                              Bits (&dot)[kRows][kWidth]) {
  if constexpr (kType == WeightType::kInt8) {
    for (int k = 0; k < group; k += 4, codes += 128, inputs += kRows * 8) {
      Bits weights[kWidth];
#pragma GCC unroll 4
      for (int c = 0; c < kWidth; ++c) weights[c] = load_codes(codes + c * kLanes * 4);
      add_products(weights, inputs, dot);
    }
  } else {
    const Bits low_nibble = set_bytes(15);
    for (int k = 0; k < group; k += 8, codes += 128, inputs += kRows * 16) {
      Bits weights[kWidth];
#pragma GCC unroll 4
      for (int c = 0; c < kWidth; ++c) {
        weights[c] = look_up(table, and_bits(load_codes(codes + c * kLanes * 4), low_nibble));
      }
      add_products(weights, inputs, dot);
#pragma GCC unroll 4
      for (int c = 0; c < kWidth; ++c) {
        const Bits high = shift_words_right<4>(load_codes(codes + c * kLanes * 4));
        weights[c] = look_up(table, and_bits(high, low_nibble));
      }
      add_products(weights, inputs + kRows * 8, dot);
    }
  }
}

template <WeightType kType, int kRows>
void multiply_pass(const IntegerPass& pass) {
  constexpr int kWidth = kRows > 1 ? kPairColumns : kColumns;
  constexpr Prefetch kPrefetch = prefetch_for(kType, kRows);
  const int group = pass.matrix->group;
  // Flipping the top bit adds 128.
  const Bits table = xor_bits(spread_table(*pass.matrix), set_bytes(0x80));
  const int8_t* inputs = pass.inputs;
  const int32_t* starts = pass.starts;
  const float* x_scales = pass.x_scales;
  float (*sums)[kTileOutputs] = pass.sums;
  const uint8_t* codes = pass.weights;
  for (int j = 0; j < pass.groups; ++j) {
    const uint8_t* halves = codes + code_bytes(kType, group);
    const uint8_t* block_end = halves + scale_bytes(kType);
    for (int column = 0; column < kColumns; column += kWidth) {
      if (pass.ahead) prefetch_part<kPrefetch>(codes, block_end, column / kWidth, kColumns / kWidth);
      // Makes the compiler forget the sums of the groups before, which it would spill to memory.
      __asm__ volatile("" : "+r"(sums));
      Bits dot[kRows][kWidth];
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
        for (int c = 0; c < kWidth; ++c) dot[r][c] = broadcast_word(starts + r);
      }
      add_group<kType, kRows, kWidth>(codes + column * kLanes * 4, table, inputs, group, dot);
#pragma GCC unroll 4
      for (int c = 0; c < kWidth; ++c) {
        const int output = (column + c) * kLanes;
        const F32s scale = load_halves(halves + output * 2);
#pragma GCC unroll 16
        for (int r = 0; r < kRows; ++r) {
          float* at = sums[r] + output;
          store(at, fma(mul(to_float(dot[r][c]), set(x_scales[r])), scale, load(at)));
        }
      }
    }
    inputs += group * kRows * 2;
    starts += kRows;
    x_scales += kRows;
    codes = block_end;
  }
}

template <WeightType kType, int... kLess>
constexpr auto pass_kernels(std::integer_sequence<int, kLess...>) {
  return std::array<IntegerPassKernel, sizeof...(kLess)>{multiply_pass<kType, kLess + 1>...};
}

template <WeightType kType>
IntegerKernels kernels() {
  constexpr int kMost = most_rows(kType);
  static constexpr auto kByRows = pass_kernels<kType>(std::make_integer_sequence<int, kMost>{});
  return {
      .most_rows = kMost, .input_bytes = 2, .starts_per_group = 1, .fill = fill, .by_rows = kByRows.data()};
}

IntegerKernels bytes_kernels(WeightType type) {
  return type == WeightType::kLut4 ? kernels<WeightType::kLut4>() : kernels<WeightType::kInt8>();
}
