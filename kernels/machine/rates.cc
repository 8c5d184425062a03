// See rates.h. Keeps no state.
#include "machine/rates.h"

#include <immintrin.h>
#include <time.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <string_view>

#include "machine/cpu.h"
#include "machine/weight_stream.h"
#include "simd/amx_tiles.h"

namespace redoubt {
namespace {

double clock_s(clockid_t clock) {
  timespec time;
  clock_gettime(clock, &time);
  return double(time.tv_sec) + 1e-9 * double(time.tv_nsec);
}

}  // namespace

std::vector<PassTime> time_passes(ThreadPool& pool, int repeats, const std::function<void(int, int)>& work) {
  std::vector<PassTime> times(static_cast<size_t>(repeats));
  std::vector<double> cpu_s(size_t(pool.threads()) * 8);  // a cache line for each thread
  pool.run([&](int thread) {
    for (PassTime& time : times) {
      pool.barrier();
      const double wall_begin_s = clock_s(CLOCK_MONOTONIC), cpu_begin_s = clock_s(CLOCK_THREAD_CPUTIME_ID);
      work(thread, int(&time - times.data()));
      cpu_s[size_t(thread) * 8] = clock_s(CLOCK_THREAD_CPUTIME_ID) - cpu_begin_s;
      pool.barrier();
      if (thread != 0) continue;
      time = {clock_s(CLOCK_MONOTONIC) - wall_begin_s, *std::max_element(cpu_s.begin(), cpu_s.end())};
    }
  });
  return times;
}

}  // namespace redoubt

#pragma GCC push_options
#pragma GCC target("avx2,fma")
namespace redoubt::avx2 {
namespace {

constexpr int kAccumulators = 12;

template <Prefetch kDistance>
void read_stream(const uint8_t* data, size_t bytes) {
  __m256i seen = _mm256_setzero_si256();
  for (size_t i = 0; i + 64 <= bytes; i += 64) {
    prefetch_weights<kDistance>(data + i);
    seen = _mm256_or_si256(seen, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(data + i)));
    seen = _mm256_or_si256(seen, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(data + i + 32)));
  }
  __asm__ volatile("" ::"x"(seen));
}

void multiply_add_int8(int64_t iterations) {
  __m256i acc[kAccumulators];
#pragma GCC unroll 12
  for (int i = 0; i < kAccumulators; ++i) acc[i] = _mm256_set1_epi16(int16_t(i));
  const __m256i codes = _mm256_set1_epi8(3);
  for (int64_t n = 0; n < iterations; ++n) {
#pragma GCC unroll 12
    for (int i = 0; i < kAccumulators; ++i) {
      __m256i pairs;
      __asm__ volatile("vpmaddubsw %1, %1, %0" : "=x"(pairs) : "x"(codes));
      acc[i] = _mm256_add_epi16(acc[i], pairs);
    }
  }
#pragma GCC unroll 12
  for (int i = 0; i < kAccumulators; ++i) __asm__ volatile("" ::"x"(acc[i]));
}

void multiply_add_fp32(int64_t iterations) {
  __m256 acc[kAccumulators];
#pragma GCC unroll 12
  for (int i = 0; i < kAccumulators; ++i) acc[i] = _mm256_set1_ps(float(i));
  const __m256 factor = _mm256_set1_ps(0.5f);
  for (int64_t n = 0; n < iterations; ++n) {
#pragma GCC unroll 12
    for (int i = 0; i < kAccumulators; ++i) acc[i] = _mm256_fmadd_ps(acc[i], factor, factor);
  }
#pragma GCC unroll 12
  for (int i = 0; i < kAccumulators; ++i) __asm__ volatile("" ::"x"(acc[i]));
}

}  // namespace
}  // namespace redoubt::avx2
#pragma GCC pop_options

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,fma")
namespace redoubt::avx512 {
namespace {

constexpr int kAccumulators = 24;

void multiply_add_int8(int64_t iterations) {
  __m512i acc[kAccumulators];
#pragma GCC unroll 24
  for (int i = 0; i < kAccumulators; ++i) acc[i] = _mm512_set1_epi32(i);
  const __m512i codes = _mm512_set1_epi8(3);
  for (int64_t n = 0; n < iterations; ++n) {
#pragma GCC unroll 24
    for (int i = 0; i < kAccumulators; ++i) {
      __asm__("vpdpbusd %1, %1, %0" : "+v"(acc[i]) : "v"(codes));
    }
  }
#pragma GCC unroll 24
  for (int i = 0; i < kAccumulators; ++i) __asm__ volatile("" ::"v"(acc[i]));
}

void multiply_add_fp32(int64_t iterations) {
  __m512 acc[kAccumulators];
#pragma GCC unroll 24
  for (int i = 0; i < kAccumulators; ++i) acc[i] = _mm512_set1_ps(float(i));
  const __m512 factor = _mm512_set1_ps(0.5f);
  for (int64_t n = 0; n < iterations; ++n) {
#pragma GCC unroll 24
    for (int i = 0; i < kAccumulators; ++i) acc[i] = _mm512_fmadd_ps(acc[i], factor, factor);
  }
#pragma GCC unroll 24
  for (int i = 0; i < kAccumulators; ++i) __asm__ volatile("" ::"v"(acc[i]));
}

}  // namespace
}  // namespace redoubt::avx512
#pragma GCC pop_options

namespace redoubt::amx {
namespace {

constexpr int kAccumulators = 4;
constexpr int64_t kDotMacs = int64_t(kTileRows) * (kTileRowBytes / 4) * kTileRowBytes;

void multiply_add_int8(int64_t iterations) {
  TileConfig config;
  for (int tile = 0; tile < kTileRegisters; ++tile) config.shape(tile, kTileRows, kTileRowBytes);
  AmxTiles tiles(config);  // all zero
  for (int64_t n = 0; n < iterations; ++n) {
    tiles.dot_product<0, 4, 6>();
    tiles.dot_product<1, 4, 7>();
    tiles.dot_product<2, 5, 6>();
    tiles.dot_product<3, 5, 7>();
  }
}

// On ordinary numbers: with zeros the processor needs less power and may run at a higher clock.
void multiply_add_bf16(int64_t iterations) {
  TileConfig config;
  for (int tile = 0; tile < kTileRegisters; ++tile) config.shape(tile, kTileRows, kTileRowBytes);
  alignas(64) uint16_t numbers[4][kTileRows][kTileRowBytes / 2];
  uint32_t state = 1;
  for (auto& tile : numbers) {
    for (auto& row : tile) {
      for (uint16_t& number : row) {
        state = state * 1664525 + 1013904223;
        number = uint16_t(0x3f00 | (state >> 16 & 0x80ff));  // a magnitude in 0.5 .. 2, either sign
      }
    }
  }
  AmxTiles tiles(config);
  tiles.load<4>(numbers[0], kTileRowBytes);
  tiles.load<5>(numbers[1], kTileRowBytes);
  tiles.load<6>(numbers[2], kTileRowBytes);
  tiles.load<7>(numbers[3], kTileRowBytes);
  for (int64_t n = 0; n < iterations; ++n) {
    tiles.dot_product_bf16<0, 4, 6>();
    tiles.dot_product_bf16<1, 4, 7>();
    tiles.dot_product_bf16<2, 5, 6>();
    tiles.dot_product_bf16<3, 5, 7>();
  }
}

}  // namespace
}  // namespace redoubt::amx

namespace redoubt {
namespace {

constexpr int kPasses = 100;
constexpr int64_t kIterations = 50'000;  // of a pass: so short that many passes are not interrupted

// One instruction in a loop. The multiply-adds are those of one thread in a pass.
struct Loop {
  std::string_view name;
  bool is_here;
  double macs;
  void (*multiply_add)(int64_t iterations);
  double ComputeLimits::* limit;
};

std::vector<Loop> loops() {
  const CpuFeatures cpu = detect_cpu_features();
  const bool has_tiles = cpu.amx && request_amx_permission();
  const double avx2_lanes = double(kIterations) * avx2::kAccumulators * 8;
  const double avx512_lanes = double(kIterations) * avx512::kAccumulators * 16;
  const double tiles =
      double(kIterations) * double(amx::kAccumulators * amx::kDotMacs);  // of int8: twice bf16's
  using L = ComputeLimits;
  return {
      {"maddubs", cpu.avx2, avx2_lanes * 4, avx2::multiply_add_int8, &L::maddubs_macs_per_s},
      {"vnni", cpu.avx512_vnni, avx512_lanes * 4, avx512::multiply_add_int8, &L::vnni_macs_per_s},
      {"fma_fp32", cpu.avx512, avx512_lanes, avx512::multiply_add_fp32, &L::fma_fp32_macs_per_s},
      {"fma_fp32", cpu.avx2 && !cpu.avx512, avx2_lanes, avx2::multiply_add_fp32, &L::fma_fp32_macs_per_s},
      {"amx_int8", has_tiles, tiles, amx::multiply_add_int8, &L::amx_int8_macs_per_s},
      {"amx_bf16", has_tiles, tiles / 2, amx::multiply_add_bf16, &L::amx_bf16_macs_per_s},
  };
}

std::vector<PassTime> time_loop(ThreadPool& pool, const Loop& loop, int passes) {
  return time_passes(pool, passes, [&](int, int) { loop.multiply_add(kIterations); });
}

double best_cpu_s(const std::vector<PassTime>& times) {
  double best = times.front().cpu_s;
  for (const PassTime& time : times) best = std::min(best, time.cpu_s);
  return best;
}

}  // namespace

ComputeLimits measure_compute(ThreadPool& pool) {
  ComputeLimits limits;
  for (const Loop& loop : loops()) {
    if (!loop.is_here) continue;
    limits.*loop.limit = double(pool.threads()) * loop.macs / best_cpu_s(time_loop(pool, loop, kPasses));
  }
  return limits;
}

double sustained_macs_per_s(ThreadPool& pool, std::string_view instruction, double duration_s) {
  for (const Loop& loop : loops()) {
    if (!loop.is_here || loop.name != instruction) continue;
    const double pass_s = best_cpu_s(time_loop(pool, loop, 10));
    std::vector<PassTime> times = time_loop(pool, loop, std::max(2, int(duration_s / pass_s)));
    // In the first half the clock may still be that of an idle processor.
    const auto by_cpu_s = [](const PassTime& a, const PassTime& b) { return a.cpu_s < b.cpu_s; };
    const auto half = times.begin() + std::ptrdiff_t(times.size() / 2);
    const auto middle = half + (times.end() - half) / 2;
    std::nth_element(half, middle, times.end(), by_cpu_s);
    return double(pool.threads()) * loop.macs / middle->cpu_s;
  }
  throw std::invalid_argument("this processor has no " + std::string(instruction));
}

std::vector<PassTime> time_read(ThreadPool& pool, size_t bytes, int repeats, size_t cold_bytes,
                                bool huge_pages) {
  if (!detect_cpu_features().avx2) throw std::invalid_argument("time_read needs AVX2");
  const size_t copies = std::max<size_t>(1, (cold_bytes + bytes - 1) / bytes);
  const size_t part = bytes / size_t(pool.threads()) / 64 * 64;
  const MeasuredPages memory(copies * bytes, huge_pages);
  pool.run([&](int thread) {  // each thread its own parts, which then lie on its node
    for (size_t copy = 0; copy < copies; ++copy) {
      std::memset(memory.as<uint8_t>() + bytes * copy + part * size_t(thread), 1, part);
    }
  });
  return time_passes(pool, repeats, [&](int thread, int pass) {
    const uint8_t* begin = memory.as<uint8_t>() + bytes * (size_t(pass) % copies) + part * size_t(thread);
    switch (pass % 3) {  // which is fastest depends on the machine
      case 0:
        return avx2::read_stream<Prefetch::kNone>(begin, part);
      case 1:
        return avx2::read_stream<Prefetch::kNear>(begin, part);
      default:
        return avx2::read_stream<Prefetch::kFar>(begin, part);
    }
  });
}

}  // namespace redoubt
