// Activations to int8 by group, and single rows of a packed matrix back to fp32, with AVX2.
#include <immintrin.h>

#include <cstring>

#include "contract/float_formats.h"
#include "linear/avx2.h"

#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")

namespace redoubt::avx2 {
namespace {

float largest_of(__m256 values_f32x8) {
  __m128 half = _mm_max_ps(_mm256_castps256_ps128(values_f32x8), _mm256_extractf128_ps(values_f32x8, 1));
  half = _mm_max_ps(half, _mm_movehl_ps(half, half));
  return _mm_cvtss_f32(_mm_max_ss(half, _mm_movehdup_ps(half)));
}

int32_t sum_of(__m256i values_i32x8) {
  __m128i half =
      _mm_add_epi32(_mm256_castsi256_si128(values_i32x8), _mm256_extracti128_si256(values_i32x8, 1));
  half = _mm_add_epi32(half, _mm_shuffle_epi32(half, _MM_SHUFFLE(1, 0, 3, 2)));
  half = _mm_add_epi32(half, _mm_shuffle_epi32(half, _MM_SHUFFLE(2, 3, 0, 1)));
  return _mm_cvtsi128_si32(half);
}

// Four registers of eight small integers as 32 bytes, in order.
__m256i bytes_of(const __m256i (&values_i32x8)[4]) {
  const __m256i bytes = _mm256_packs_epi16(_mm256_packs_epi32(values_i32x8[0], values_i32x8[1]),
                                           _mm256_packs_epi32(values_i32x8[2], values_i32x8[3]));
  // Packing works within 128-bit halves; this puts the words of the result back in order.
  return _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

// Group `at` of `out`; its size is a multiple of 32.
template <bool kTwoTerms>
void quantize_group(const float* x, const QuantizedRows& out, int64_t at) {
  const __m256 magnitude_bits = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
  __m256 largest_f32x8 = _mm256_setzero_ps();
  for (int k = 0; k < out.group; k += 8) {
    largest_f32x8 = _mm256_max_ps(_mm256_and_ps(_mm256_loadu_ps(x + k), magnitude_bits), largest_f32x8);
  }
  constexpr float kSteps = kTwoTerms ? 32512.0f : 127.0f;
  const float largest = largest_of(largest_f32x8);
  const bool zero = largest < kSmallestQuantized;
  const __m256 inverse = _mm256_set1_ps(zero ? 0.0f : kSteps / largest);

  __m256i sum_i32x8 = _mm256_setzero_si256();
  for (int k = 0; k < out.group; k += 32) {
    __m256i n[4], q[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      n[i] = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + k + i * 8), inverse));
      sum_i32x8 = _mm256_add_epi32(sum_i32x8, n[i]);
      q[i] = kTwoTerms ? _mm256_srai_epi32(_mm256_add_epi32(n[i], _mm256_set1_epi32(128)), 8) : n[i];
      n[i] = _mm256_sub_epi32(n[i], _mm256_slli_epi32(q[i], 8));
    }
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out.values + at * out.group + k), bytes_of(q));
    if constexpr (kTwoTerms) {
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(out.low_values + at * out.group + k), bytes_of(n));
    }
  }
  const int32_t sum = sum_of(sum_i32x8);
  out.scales[at] = zero ? 0.0f : largest / kSteps;
  out.starts[at] = -8 * sum;
  out.offsets[at] = float(sum) * out.scales[at];
}

float half_at(const uint8_t* halves, int lane) {
  uint16_t bits;
  std::memcpy(&bits, halves + lane * 2, 2);
  return fp16_to_float(bits);
}

uint32_t word_at(const uint8_t* bytes) {
  uint32_t word;
  std::memcpy(&word, bytes, 4);
  return word;
}

void dequantize_row_int4(const PackedMatrix& w, int32_t row, float* out) {
  const int lane = row % kTileOutputs;
  const uint8_t* block = w.tile(row / kTileOutputs);
  const bool asymmetric = w.type == WeightType::kAsymInt4;
  const __m256i table = load_table(w);
  for (int32_t j = 0; j < w.blocks(); ++j, block += w.block_bytes()) {
    const uint8_t* halves = block + code_bytes(w.type, w.group);
    const __m256 scale = _mm256_set1_ps(half_at(halves, lane));
    const __m256 minimum = _mm256_set1_ps(asymmetric ? half_at(halves + 64, lane) : 0.0f);
    for (int kb = 0; kb < w.group / 8; ++kb, out += 8) {
      const uint32_t packed =
          word_at(block + kb * 128 + lane * 4);  // outputs of both columns are 4 bytes apart
      const uint64_t codes = (packed & 0x0f0f0f0fu) | uint64_t(packed >> 4 & 0x0f0f0f0fu) << 32;
      const __m128i bytes = _mm_cvtsi64_si128(int64_t(codes));
      if (w.type == WeightType::kLut4) {
        const __m256i entry = _mm256_cvtepi8_epi32(_mm_shuffle_epi8(_mm256_castsi256_si128(table), bytes));
        _mm256_storeu_ps(out, _mm256_mul_ps(scale, _mm256_cvtepi32_ps(entry)));
        continue;
      }
      const __m256i code = _mm256_cvtepu8_epi32(bytes);
      const __m256 value =
          asymmetric ? _mm256_fmadd_ps(scale, _mm256_cvtepi32_ps(code), minimum)
                     : _mm256_mul_ps(scale, _mm256_cvtepi32_ps(_mm256_sub_epi32(code, _mm256_set1_epi32(8))));
      _mm256_storeu_ps(out, value);
    }
  }
}

void dequantize_row_int8(const PackedMatrix& w, int32_t row, float* out) {
  const int lane = row % kTileOutputs;
  const uint8_t* block = w.tile(row / kTileOutputs);
  for (int32_t j = 0; j < w.blocks(); ++j, block += w.block_bytes()) {
    const __m128 scale = _mm_set1_ps(half_at(block + code_bytes(w.type, w.group), lane));
    for (int kb = 0; kb < w.group / 4; ++kb, out += 4) {
      const __m128i codes = _mm_cvtepu8_epi32(_mm_cvtsi32_si128(int(word_at(block + kb * 128 + lane * 4))));
      _mm_storeu_ps(out, _mm_mul_ps(scale, _mm_cvtepi32_ps(_mm_sub_epi32(codes, _mm_set1_epi32(128)))));
    }
  }
}

}  // namespace

void quantize_rows(const FloatRows& x, const QuantizedRows& out, int row, int col) {
  const auto quantize = out.low_values == nullptr ? quantize_group<false> : quantize_group<true>;
  for (int r = 0; r < x.rows; ++r) {
    const int64_t first = (int64_t(row + r) * out.cols + col) / out.group;
    for (int j = 0; j < x.cols / out.group; ++j) {
      quantize(x.values + r * x.stride + j * out.group, out, first + j);
    }
  }
}

void dequantize_row(const PackedMatrix& w, int32_t row, float* out) {
  const uint8_t* lane = w.tile(row / kTileOutputs) + (row % kTileOutputs) * 4;
  switch (w.type) {
    case WeightType::kSymInt4:
    case WeightType::kAsymInt4:
    case WeightType::kLut4:
      return dequantize_row_int4(w, row, out);
    case WeightType::kInt8:
      return dequantize_row_int8(w, row, out);
    case WeightType::kFp16: {
      const uint8_t* halves = w.tile(row / kTileOutputs) + (row % kTileOutputs) * 2;
      for (int k = 0; k < w.cols; ++k) {
        uint16_t bits;
        std::memcpy(&bits, halves + int64_t(k) * 64, 2);
        out[k] = _cvtsh_ss(bits);
      }
      return;
    }
    case WeightType::kBf16:
      for (int k = 0; k < w.cols; k += 2) {
        const uint32_t pair = word_at(lane + int64_t(k) * 64);
        out[k] = bf16_to_float(uint16_t(pair));
        out[k + 1] = bf16_to_float(uint16_t(pair >> 16));
      }
      return;
    case WeightType::kFp32:
      for (int k = 0; k < w.cols; ++k) std::memcpy(out + k, lane + int64_t(k) * 128, 4);
      return;
  }
}

}  // namespace redoubt::avx2

#pragma GCC pop_options
