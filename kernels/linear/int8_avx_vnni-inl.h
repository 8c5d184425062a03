// Integer weights times int8 activations with AVX-VNNI, for processors that have VNNI but no AVX-512, such as
// Xeon 6 with efficient cores. All other kernels of this tier are AVX2's.
//
// There are 16 registers, so a group is multiplied for two columns of eight outputs at a time. Then the sums
// of four rows stay in registers, an input is loaded once for two columns, and only the fp32 accumulators are
// in memory.
//
// Included inside the namespace and target region of linear/int8_avx_vnni.cc and of
// testing/linear_int8_avx_vnni_evex.cc. Encoding, below, provides the instruction.

using avx2::broadcast_word;
using avx2::kColumns;
using avx2::load_32_bytes;
using avx2::load_halves;
using avx2::write_outputs;

constexpr int kPassRows = 4;     // of one term: two terms of a row count as two rows
constexpr int kStepInputs = 32;  // every group is a multiple
constexpr int kSpan = 2;         // columns at once

// The inputs of a pass: all first terms of the rows, then all second terms.
template <int kCount>
using Rows = const int8_t* [kCount];

// Encoding::add_dot: sum += dot products of four unsigned codes and four signed inputs, lane by lane.
template <typename Encoding, int kCount>
REDOUBT_INLINE void add_dots(const __m256i (&codes)[kSpan], const Rows<kCount>& rows, int k,
                             __m256i (&dot)[kCount][kSpan]) {
#pragma GCC unroll 4
  for (int i = 0; i < kCount; ++i) {
    const __m256i inputs = broadcast_word(rows[i] + k);
    for (int c = 0; c < kSpan; ++c) Encoding::add_dot(dot[i][c], codes[c], inputs);
  }
}

// Adds the dot products of kStepInputs inputs to `dot`. codes: of the first of the columns.
template <typename Encoding, WeightType kType, int kCount>
REDOUBT_INLINE void step(const uint8_t* codes, __m256i table, const Rows<kCount>& rows, int k,
                         __m256i (&dot)[kCount][kSpan]) {
  if constexpr (kType == WeightType::kInt8) {
#pragma GCC unroll 8
    for (int kb = 0; kb < kStepInputs / 4; ++kb) {
      const __m256i both[kSpan] = {load_32_bytes(codes + kb * 128), load_32_bytes(codes + kb * 128 + 32)};
      add_dots<Encoding, kCount>(both, rows, k + kb * 4, dot);
    }
  } else {
    const __m256i low_nibble = _mm256_set1_epi8(15);
#pragma GCC unroll 4
    for (int kb = 0; kb < kStepInputs / 8; ++kb) {
      __m256i low[kSpan], high[kSpan];
      for (int c = 0; c < kSpan; ++c) {
        const __m256i packed = load_32_bytes(codes + kb * 128 + c * 32);
        low[c] = _mm256_and_si256(packed, low_nibble);
        high[c] = _mm256_and_si256(_mm256_srli_epi16(packed, 4), low_nibble);
        if constexpr (kType == WeightType::kLut4) {
          low[c] = _mm256_shuffle_epi8(table, low[c]);
          high[c] = _mm256_shuffle_epi8(table, high[c]);
        }
      }
      add_dots<Encoding, kCount>(low, rows, k + kb * 8, dot);
      add_dots<Encoding, kCount>(high, rows, k + kb * 8 + 4, dot);
    }
  }
}

// What a group's sum starts from. `start` is -8 s; zero points of 0, 8 and 128 need 0, 1 and 16 times that.
template <WeightType kType>
REDOUBT_INLINE __m256i first_sum(int32_t start) {
  if constexpr (kType == WeightType::kAsymInt4) return _mm256_setzero_si256();
  return _mm256_set1_epi32(kType == WeightType::kSymInt4 ? start : 16 * start);
}

// One tile's outputs of rows [row, row + kRows).
template <typename Encoding, WeightType kType, int kRows, int kTerms>
void multiply_tile(const PackedMatrix& w, const QuantizedRows& x, const LinearOutput& y, int tile, int row) {
  constexpr int kStepBytes = kStepInputs * (kType == WeightType::kInt8 ? 32 : 16);
  constexpr int kCount = kRows * kTerms;
  const int groups = w.cols / w.group, steps = w.group / kStepInputs;
  const uint8_t* codes = w.tile(tile);
  // Flipping the top bit adds 128.
  const __m256i table = _mm256_xor_si256(avx2::load_table(w), _mm256_set1_epi8(int8_t(0x80)));
  const int8_t* rows[kCount];
  for (int i = 0; i < kCount; ++i) {
    rows[i] = (i < kRows ? x.values : x.low_values) + int64_t(row + i % kRows) * x.cols;
  }
  const float* x_scales = x.scales + int64_t(row) * groups;
  const int32_t* starts = x.starts + int64_t(row) * groups;
  const float* offsets = x.offsets + int64_t(row) * groups;

  __m256 acc[kRows][kColumns] = {};
  for (int j = 0; j < groups; ++j) {
    const uint8_t* scales = codes + steps * kStepBytes;
    prefetch_weights<Prefetch::kNear>(codes, scales);
    for (int column = 0; column < kColumns; column += kSpan) {
      __m256i dot[kCount][kSpan];
#pragma GCC unroll 4
      for (int i = 0; i < kCount; ++i) {
        // The sum of the last term begins with the start; in the end 256 times the first term's sum is added.
        const bool last = i / kRows == kTerms - 1;
        const __m256i start =
            last ? first_sum<kType>(starts[int64_t(i % kRows) * groups + j]) : _mm256_setzero_si256();
        for (int c = 0; c < kSpan; ++c) dot[i][c] = start;
      }
      for (int s = 0; s < steps; ++s) {
        const int k = j * w.group + s * kStepInputs;
        step<Encoding, kType, kCount>(codes + s * kStepBytes + column * 32, table, rows, k, dot);
      }
      for (int c = 0; c < kSpan; ++c) {
        const uint8_t* scale_halves = scales + (column + c) * 16;
        const __m256 scale = load_halves(scale_halves);
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r) {
          const int64_t at = int64_t(r) * groups + j;
          __m256i sum = dot[r][c];
          if constexpr (kTerms == 2) sum = _mm256_add_epi32(_mm256_slli_epi32(sum, 8), dot[kRows + r][c]);
          const __m256 product = _mm256_mul_ps(_mm256_cvtepi32_ps(sum), _mm256_set1_ps(x_scales[at]));
          __m256& total = acc[r][column + c];
          total = _mm256_fmadd_ps(product, scale, total);
          if constexpr (kType == WeightType::kAsymInt4) {
            total = _mm256_fmadd_ps(_mm256_set1_ps(offsets[at]), load_halves(scale_halves + 64), total);
          }
        }
      }
    }
    codes = scales + scale_bytes(kType);
  }
  for (int r = 0; r < kRows; ++r) {
    for (int c = 0; c < kColumns; ++c) write_outputs(w, y, row + r, tile * kTileOutputs + c * 8, acc[r][c]);
  }
}

template <typename Encoding, WeightType kType>
constexpr TermKernels<kPassRows> kTileKernels = {
    {multiply_tile<Encoding, kType, 1, 1>, multiply_tile<Encoding, kType, 2, 1>,
     multiply_tile<Encoding, kType, 3, 1>, multiply_tile<Encoding, kType, 4, 1>},
    {multiply_tile<Encoding, kType, 1, 2>, multiply_tile<Encoding, kType, 2, 2>}};

template <typename Encoding>
const TermKernels<kPassRows>& tile_kernels(WeightType type) {
  return *with_integer_type(type, [](auto constant) { return &kTileKernels<Encoding, constant()>; });
}

template <typename Encoding>
void linear_int8(const PackedMatrix& w, const QuantizedRows& x, const LinearOutput& y, int tile_begin,
                 int tile_end) {
  multiply_in_passes(tile_kernels<Encoding>(w.type), w, x, y, tile_begin, tile_end);
}
