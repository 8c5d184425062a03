// Paged attention on AVX-512 (F, BW, DQ, VL, VNNI).
#include <immintrin.h>

#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#include "ops/vector.h"

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")

namespace redoubt::avx512 {
namespace {
#include "simd/vector_avx512-inl.h"

#include "simd/exp2-inl.h"

#include "attention/float-inl.h"

#include "attention/fixed-inl.h"

#include "attention/rows-inl.h"

#include "attention/task-inl.h"
}  // namespace

void fill_attention(KernelTable& table) {
  table.attention = attention;
  table.attention_partition = attention_partition;
  table.attention_merge = attention_merge;
  table.attention_scratch_bytes = attention_scratch_bytes;
}

}  // namespace redoubt::avx512

#pragma GCC pop_options
