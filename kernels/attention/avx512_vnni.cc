// Paged attention on AVX-512 (F, BW, DQ, VL) with VNNI.
#include <immintrin.h>

#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#include "attention/score_modifier.h"
#include "contract/attention.h"
#include "contract/float_formats.h"
#include "contract/kernel_table.h"
#include "simd/inline.h"
#include "simd/numbers.h"

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")

namespace redoubt::avx512_vnni {
namespace {
#include "simd/vector_avx512-inl.h"

#include "simd/dot_avx512_vnni-inl.h"

#include "simd/exp2-inl.h"

#include "simd/tanh-inl.h"

#include "attention/modifier-inl.h"

#include "attention/float-inl.h"

#include "attention/fixed-inl.h"

#include "attention/rows-inl.h"

#include "attention/task-inl.h"
}  // namespace
}  // namespace redoubt::avx512_vnni

#pragma GCC pop_options

namespace redoubt {

void fill_attention_avx512_vnni(KernelTable& table) {
  table.attention = avx512_vnni::attention;
  table.attention_partition = avx512_vnni::attention_partition;
  table.attention_merge = avx512_vnni::attention_merge;
  table.attention_scratch_bytes = avx512_vnni::attention_scratch_bytes;
}

}  // namespace redoubt
