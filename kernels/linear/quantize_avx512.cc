// Activations to int8 with AVX-512, 16 groups at a time: the values that each group has once (largest,
// quotients, sum) are one vector for 16 groups. linear/scalar.cc defines the result.
#include "contract/float_formats.h"
#include "linear/avx512.h"

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,fma,f16c")

namespace redoubt::avx512 {
namespace {

constexpr int kGroups = 16;

#include "simd/fold_lanes-inl.h"

// Sixteen groups: their inputs and their places in the output. Fewer are filled up with copies of the last.
struct Groups {
  const float* x[kGroups];
  int64_t at[kGroups];
  bool are_neighbours;  // whether the places are 16 consecutive ones
};

// Stores one value of each group at the group's place.
template <typename Value>
REDOUBT_INLINE void scatter(const Groups& groups, __m512i values_x16, Value* out) {
  if (groups.are_neighbours) return _mm512_storeu_si512(out + groups.at[0], values_x16);
  alignas(64) Value values[kGroups];
  _mm512_store_si512(values, values_x16);
#pragma GCC unroll 16
  for (int g = 0; g < kGroups; ++g) out[groups.at[g]] = values[g];
}

REDOUBT_INLINE void store_bytes(int8_t* out, __m512i values_i32x16) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(out), _mm512_cvtsepi32_epi8(values_i32x16));
}

// kVectors of 16 values are a group.
template <int kVectors, bool kTwoTerms>
void quantize_groups(const Groups& groups, const QuantizedRows& out) {
  constexpr int kGroup = 16 * kVectors;
  const __m512 steps = _mm512_set1_ps(kTwoTerms ? 32512.0f : 127.0f);
  __m512 each[kGroups];
#pragma GCC unroll 16
  for (int g = 0; g < kGroups; ++g) {
    // If the first operand is NaN, the result is the second.
    __m512 largest = _mm512_max_ps(_mm512_abs_ps(_mm512_loadu_ps(groups.x[g])), _mm512_setzero_ps());
#pragma GCC unroll 8
    for (int v = 1; v < kVectors; ++v) {
      largest = _mm512_max_ps(_mm512_abs_ps(_mm512_loadu_ps(groups.x[g] + 16 * v)), largest);
    }
    each[g] = largest;
  }
  const __m512 largest = fold_lanes(
      each, [&](__m512 a, __m512 b) __attribute__((always_inline)) { return _mm512_max_ps(a, b); });
  const __mmask16 counts = _mm512_cmp_ps_mask(largest, _mm512_set1_ps(kSmallestQuantized), _CMP_GE_OQ);
  const __m512 scales = _mm512_maskz_div_ps(counts, largest, steps);
  alignas(64) float inverses[kGroups];
  _mm512_store_ps(inverses, _mm512_maskz_div_ps(counts, steps, largest));

#pragma GCC unroll 16
  for (int g = 0; g < kGroups; ++g) {
    const __m512 inverse = _mm512_set1_ps(inverses[g]);
    int8_t* const values = out.values + groups.at[g] * kGroup;
    __m512i sum = _mm512_setzero_si512();
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      const __m512i n = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(groups.x[g] + 16 * v), inverse));
      sum = _mm512_add_epi32(sum, n);
      if constexpr (kTwoTerms) {
        const __m512i high = _mm512_srai_epi32(_mm512_add_epi32(n, _mm512_set1_epi32(128)), 8);
        store_bytes(values + 16 * v, high);
        store_bytes(out.low_values + groups.at[g] * kGroup + 16 * v,
                    _mm512_sub_epi32(n, _mm512_slli_epi32(high, 8)));
      } else {
        store_bytes(values + 16 * v, n);
      }
    }
    each[g] = _mm512_castsi512_ps(sum);
  }
  const auto add = [&](__m512 a_i32x16, __m512 b_i32x16) __attribute__((always_inline)) {
    return _mm512_castsi512_ps(
        _mm512_add_epi32(_mm512_castps_si512(a_i32x16), _mm512_castps_si512(b_i32x16)));
  };
  const __m512i sums = _mm512_castps_si512(fold_lanes(each, add));
  scatter(groups, _mm512_castps_si512(scales), out.scales);
  scatter(groups, _mm512_sub_epi32(_mm512_setzero_si512(), _mm512_slli_epi32(sums, 3)), out.starts);
  scatter(groups, _mm512_castps_si512(_mm512_mul_ps(_mm512_cvtepi32_ps(sums), scales)), out.offsets);
}

template <bool kTwoTerms>
auto quantize_groups_of(int group) {
  return group == 32   ? quantize_groups<2, kTwoTerms>
         : group == 64 ? quantize_groups<4, kTwoTerms>
                       : quantize_groups<8, kTwoTerms>;
}

}  // namespace

void quantize_rows(const FloatRows& x, const QuantizedRows& out, int row, int col) {
  const auto quantize =
      out.low_values == nullptr ? quantize_groups_of<false>(out.group) : quantize_groups_of<true>(out.group);
  Groups groups;
  int count = 0;
  for (int r = 0; r < x.rows; ++r) {
    const int64_t first = (int64_t(row + r) * out.cols + col) / out.group;
    for (int j = 0; j < x.cols / out.group; ++j) {
      groups.x[count] = x.values + r * x.stride + j * out.group;
      groups.at[count++] = first + j;
      if (count < kGroups) continue;
      groups.are_neighbours = groups.at[kGroups - 1] - groups.at[0] == kGroups - 1;
      quantize(groups, out);
      count = 0;
    }
  }
  if (count == 0) return;
  for (int g = count; g < kGroups; ++g) {
    groups.x[g] = groups.x[count - 1];
    groups.at[g] = groups.at[count - 1];
  }
  groups.are_neighbours = false;
  quantize(groups, out);
}

}  // namespace redoubt::avx512

#pragma GCC pop_options
