// Linear int4 codes (sym_int4, asym_int4) times int8 activations with AVX2 or with AVX-512 without VNNI.
// vpmaddubsw adds pairs of byte products in 16 bits, at most 2 * 15 * 128, so that it never saturates. Its
// results are added up in 16 bits for as many inputs as fit, and widened once for all of them. Where that is
// a whole group, sums are scaled directly from their registers. What else was tried is in docs/tuning.md.
//
// Included inside the tier's namespace and target region, after simd/vector_*-inl.h and
// linear/integers_*-inl.h.

// Of one term. With AVX2 12 sums of two columns, and four registers for operands. AVX-512 has registers for
// 12 rows, which are no faster than 8 (docs/tuning.md).
constexpr int kPassRows = kLanes == 8 ? 6 : 8;
constexpr int kColumns = kTileOutputs / kLanes;
constexpr int kPairColumns = 2;  // at once in passes of several rows, so that sums stay in registers

constexpr int kMostWord = 32767;
static_assert(2 * 15 * 128 <= kMostWord, "vpmaddubsw does not saturate");
static_assert(16 * 15 * 128 <= kMostWord && 32 * 8 * 127 <= kMostWord,
              "and sums of a span fit, of 32 and of 64");

// Inputs whose products are added up in 16 bits; each lane takes half of them. A lane holds 16 products of at
// most 15 * 128. Sums of more products may wrap around, which is harmless if the total including the zero
// point, at most 32 * 8 * 127, fits. This does not hold with a second term, which may be -128.
constexpr int span_inputs(WeightType type, int terms) {
  return type == WeightType::kSymInt4 && terms == 1 ? 64 : 32;
}

__m256i load_inputs(const int8_t* inputs) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(inputs));
}

// What sym_int4's 16-bit sums of a span start from: -8 times the sum of the inputs of the low 16-bit lanes
// (k % 4 < 2), and the same of the others in the upper half.
int32_t packed_start(const int8_t* inputs, int count) {
  __m256i pairs = _mm256_setzero_si256();
  for (int k = 0; k < count; k += 32) {
    pairs = _mm256_sub_epi16(pairs, _mm256_maddubs_epi16(_mm256_set1_epi8(8), load_inputs(inputs + k)));
  }
  __m128i sum = _mm_add_epi16(_mm256_castsi256_si128(pairs), _mm256_extracti128_si256(pairs, 1));
  sum = _mm_add_epi16(sum, _mm_shuffle_epi32(sum, _MM_SHUFFLE(1, 0, 3, 2)));
  sum = _mm_add_epi16(sum, _mm_shuffle_epi32(sum, _MM_SHUFFLE(2, 3, 0, 1)));
  return _mm_cvtsi128_si32(sum);
}

void store_half(int8_t* at, __m128i bytes) { _mm_storeu_si128(reinterpret_cast<__m128i*>(at), bytes); }

// Copies the same inputs of `count` rows to [input / 8][row][8].
void copy_inputs(const int8_t* const* rows, int count, int inputs, int8_t* to) {
  const int stride = count * 8;
  int row = 0;
  for (; row + 2 <= count; row += 2, to += 16) {
    for (int k = 0; k < inputs; k += 32) {
      const __m256i first = load_inputs(rows[row] + k), second = load_inputs(rows[row + 1] + k);
      const __m256i even = _mm256_unpacklo_epi64(first, second), odd = _mm256_unpackhi_epi64(first, second);
      int8_t* at = to + k / 8 * stride;
      store_half(at, _mm256_castsi256_si128(even));
      store_half(at + stride, _mm256_castsi256_si128(odd));
      store_half(at + 2 * stride, _mm256_extracti128_si256(even, 1));
      store_half(at + 3 * stride, _mm256_extracti128_si256(odd, 1));
    }
  }
  if (row < count) {
    for (int k = 0; k < inputs; k += 8) __builtin_memcpy(to + k / 8 * stride, rows[row] + k, 8);
  }
}

// IntegerKernels::fill. Two terms of a row are two rows of inputs: all first terms, then all second terms.
template <WeightType kType, int kTerms, int kSpan>
void fill(const QuantizedRows& x, int row, int rows, int first_group, int groups, int8_t* inputs,
          int32_t* starts) {
  const int8_t* terms[kPassRows];
  const int count = rows * kTerms, cols = groups * x.group;
  for (int i = 0; i < count; ++i) {
    const int64_t first = int64_t(row + i % rows) * x.cols + first_group * x.group;
    terms[i] = (i < rows ? x.values : x.low_values) + first;
    if constexpr (kType == WeightType::kSymInt4) {
      for (int s = 0; s < cols / kSpan; ++s) {
        starts[s * count + i] = packed_start(terms[i] + s * kSpan, kSpan);
      }
    }
  }
  copy_inputs(terms, count, cols, inputs);
}

// 16-bit sums of a span's products in kWidth columns of eight outputs, four inputs at a time.
template <WeightType kType, int kSpan, int kCount, int kWidth>
REDOUBT_INLINE void add_span(const uint8_t* codes, const int8_t* inputs, const int32_t* starts,
                             Bits (&sums_i16)[kCount][kWidth]) {
  const Bits low_nibble = set_bytes(15);
#pragma GCC unroll 16
  for (int step = 0; step < kSpan / 4; ++step) {
    const bool high = step % 2 == 1;  // the high nibbles of the step before's bytes
    Bits weights[kWidth];
#pragma GCC unroll 4
    for (int c = 0; c < kWidth; ++c) {
      const Bits packed = load_codes(codes + step / 2 * 128 + c * kLanes * 4);
      weights[c] = and_bits(high ? shift_words_right<4>(packed) : packed, low_nibble);
    }
#pragma GCC unroll 16
    for (int i = 0; i < kCount; ++i) {
      const Bits x = broadcast_word(inputs + (step / 2 * kCount + i) * 8 + high * 4);
#pragma GCC unroll 4
      for (int c = 0; c < kWidth; ++c) {
        Bits& sum = sums_i16[i][c];
        const Bits pairs = multiply_bytes(weights[c], x);
        if (step > 0) {
          sum = add_words(sum, pairs);
        } else {
          sum = kType == WeightType::kSymInt4 ? add_words(broadcast_word(starts + i), pairs) : pairs;
        }
        keep_order(sum);
      }
    }
  }
}

// kOneSpan: a group is one span. Otherwise the sums of the spans before the last are kept in memory.
template <WeightType kType, int kTerms, int kSpan, bool kOneSpan, int kRows>
void multiply_pass(const IntegerPass& pass) {
  constexpr int kCount = kRows * kTerms;
  constexpr int kWidth = kCount > 1 ? kPairColumns : kColumns;
  constexpr int kSpanBytes = kSpan * 16;
  constexpr Prefetch kPrefetch = kCount > 1 ? Prefetch::kFar : Prefetch::kNear;
  const int group = kOneSpan ? kSpan : pass.matrix->group, spans = group / kSpan;
  const int8_t* inputs = pass.inputs;
  const int32_t* starts = pass.starts;
  const float *x_scales = pass.x_scales, *x_offsets = pass.x_offsets;
  float (*sums)[kTileOutputs] = pass.sums;
  const uint8_t* codes = pass.weights;
  F32s held[kColumns];  // the sums of one row of one term fit the registers
  for (int c = 0; kCount == 1 && c < kColumns; ++c) held[c] = load(sums[0] + c * kLanes);
  for (int j = 0; j < pass.groups; ++j) {
    const uint8_t* halves = codes + code_bytes(kType, group);
    const uint8_t* block_end = halves + scale_bytes(kType);
    for (int column = 0; column < kColumns; column += kWidth) {
      if (pass.ahead) prefetch_part<kPrefetch>(codes, block_end, column / kWidth, kColumns / kWidth);
      // Makes the compiler forget what it read for the columns and groups before, which it would spill to
      // memory.
      __asm__ volatile("" : "+r"(inputs), "+r"(starts), "+r"(sums));
      const uint8_t* span_codes = codes + column * kLanes * 4;
      Bits sums_i16[kCount][kWidth], dots[kCount][kWidth];
      for (int span = 0; !kOneSpan && span < spans - 1; ++span) {
        add_span<kType, kSpan>(span_codes + span * kSpanBytes, inputs + span * kSpan * kCount,
                               starts + span * kCount, sums_i16);
#pragma GCC unroll 16
        for (int i = 0; i < kCount; ++i) {
#pragma GCC unroll 4
          for (int c = 0; c < kWidth; ++c) {
            const Bits wide = add_halves(sums_i16[i][c]);
            dots[i][c] = span == 0 ? wide : add_integers(dots[i][c], wide);
          }
        }
      }
      const int last = spans - 1;
      add_span<kType, kSpan>(span_codes + last * kSpanBytes, inputs + last * kSpan * kCount,
                             starts + last * kCount, sums_i16);
      const auto dot = [&](int i, int c) {
        const Bits wide = add_halves(sums_i16[i][c]);
        return kOneSpan ? wide : add_integers(dots[i][c], wide);
      };
#pragma GCC unroll 4
      for (int c = 0; c < kWidth; ++c) {
        const int output = (column + c) * kLanes;
        // Loaded here and once, because for the compiler the stores to `sums` might change them.
        const F32s scale = load_halves(halves + output * 2);
        F32s minimum = set(0.0f);
        if constexpr (kType == WeightType::kAsymInt4) minimum = load_halves(halves + 64 + output * 2);
#pragma GCC unroll 16
        for (int r = 0; r < kRows; ++r) {
          Bits sum = dot(r, c);
          if constexpr (kTerms == 2) sum = add_integers(shift_integers_left<8>(sum), dot(kRows + r, c));
          const F32s product = mul(to_float(sum), set(x_scales[r]));
          float* at = sums[r] + output;
          F32s total = fma(product, scale, kCount == 1 ? held[c] : load(at));
          if constexpr (kType == WeightType::kAsymInt4) {
            total = fma(set(x_offsets[r]), minimum, total);
          }
          if constexpr (kCount == 1) {
            held[c] = total;
          } else {
            store(at, total);
          }
        }
      }
    }
    inputs += group * kCount;
    starts += spans * kCount;
    x_scales += kRows;
    x_offsets += kRows;
    codes = block_end;
  }
  for (int c = 0; kCount == 1 && c < kColumns; ++c) store(sums[0] + c * kLanes, held[c]);
}

// Indexed by the number of rows minus one.
template <WeightType kType, int kTerms, int kSpan, bool kOneSpan, int... kLess>
constexpr auto pass_kernels(std::integer_sequence<int, kLess...>) {
  return std::array<IntegerPassKernel, sizeof...(kLess)>{
      multiply_pass<kType, kTerms, kSpan, kOneSpan, kLess + 1>...};
}

template <WeightType kType, int kTerms, int kSpan, bool kOneSpan>
IntegerKernels kernels(int group) {
  constexpr int kMost = kPassRows / kTerms;
  static constexpr auto kByRows =
      pass_kernels<kType, kTerms, kSpan, kOneSpan>(std::make_integer_sequence<int, kMost>{});
  return {.most_rows = kMost,
          .input_bytes = kTerms,
          .starts_per_group = kType == WeightType::kSymInt4 ? kTerms * group / kSpan : 0,
          .fill = fill<kType, kTerms, kSpan>,
          .by_rows = kByRows.data()};
}

template <WeightType kType, int kTerms>
IntegerKernels kernels(int group) {
  constexpr int kSpan = span_inputs(kType, kTerms);
  if (group > kSpan) return kernels<kType, kTerms, kSpan, false>(group);
  if (group == kSpan) return kernels<kType, kTerms, kSpan, true>(group);
  return kernels<kType, kTerms, 32, true>(group);  // sym_int4's groups of 32
}

IntegerKernels int4_kernels(WeightType type, int terms, int group) {
  if (type == WeightType::kSymInt4) {
    return terms == 1 ? kernels<WeightType::kSymInt4, 1>(group) : kernels<WeightType::kSymInt4, 2>(group);
  }
  return terms == 1 ? kernels<WeightType::kAsymInt4, 1>(group) : kernels<WeightType::kAsymInt4, 2>(group);
}
