// Timings of linear kernels and of the machine's limits. Knows nothing of models; keeps no state.
#include "testing/measure.h"

#include <immintrin.h>
#include <sys/mman.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <functional>
#include <new>
#include <stdexcept>
#include <utility>

#include "linear/weight_stream.h"
#include "machine/cpu.h"
#include "simd/amx_tiles.h"
#include "step/workspace.h"

namespace redoubt {
namespace {

double clock_s(clockid_t clock) {
  timespec time;
  clock_gettime(clock, &time);
  return double(time.tv_sec) + 1e-9 * double(time.tv_nsec);
}

// Zeroed memory, in ordinary pages like a mapped file's, or in huge pages where the system grants them.
class Pages {
 public:
  Pages(size_t bytes, bool huge) : bytes_((bytes / kHugeBytes + 1) * kHugeBytes) {
    mapping_ = mmap(nullptr, bytes_ + kHugeBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapping_ == MAP_FAILED) throw std::bad_alloc();
    data_ = reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(mapping_) + kHugeBytes - 1) / kHugeBytes *
                                    kHugeBytes);
    madvise(data_, bytes_, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
  }
  ~Pages() { munmap(mapping_, bytes_ + kHugeBytes); }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  template <typename T>
  T* as() const {
    return static_cast<T*>(data_);
  }

 private:
  static constexpr size_t kHugeBytes = size_t(2) << 20;
  size_t bytes_;
  void* mapping_;
  void* data_;
};

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
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,fma")
namespace redoubt::avx512_vnni {
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
}  // namespace redoubt::avx512_vnni
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

double best_cpu_s(const std::vector<PassTime>& times) {
  double best = times.front().cpu_s;
  for (const PassTime& time : times) best = std::min(best, time.cpu_s);
  return best;
}

double passes_per_s(ThreadPool& pool, const std::function<void(int, int)>& work) {
  return 1.0 / best_cpu_s(time_passes(pool, kPasses, work));
}

}  // namespace

ComputeLimits measure_compute(ThreadPool& pool) {
  const CpuFeatures cpu = detect_cpu_features();
  const double iterations = double(pool.threads()) * double(kIterations);
  ComputeLimits limits;
  const double avx2_lanes = iterations * avx2::kAccumulators * 8;
  if (cpu.avx2) {
    limits.maddubs_macs_per_s =
        avx2_lanes * 4 * passes_per_s(pool, [](int, int) { avx2::multiply_add_int8(kIterations); });
  }
  if (cpu.avx512_vnni) {
    const double lanes = iterations * avx512_vnni::kAccumulators * 16;
    limits.vnni_macs_per_s =
        lanes * 4 * passes_per_s(pool, [](int, int) { avx512_vnni::multiply_add_int8(kIterations); });
    limits.fma_fp32_macs_per_s =
        lanes * passes_per_s(pool, [](int, int) { avx512_vnni::multiply_add_fp32(kIterations); });
  } else if (cpu.avx2) {
    limits.fma_fp32_macs_per_s =
        avx2_lanes * passes_per_s(pool, [](int, int) { avx2::multiply_add_fp32(kIterations); });
  }
  if (std::ranges::count(available_tiers(), Tier::kAmxInt8) != 0) {
    const double macs = iterations * double(amx::kAccumulators * amx::kDotMacs);  // of int8: twice bf16's
    limits.amx_int8_macs_per_s =
        macs * passes_per_s(pool, [](int, int) { amx::multiply_add_int8(kIterations); });
    limits.amx_bf16_macs_per_s =
        macs / 2 * passes_per_s(pool, [](int, int) { amx::multiply_add_bf16(kIterations); });
  }
  return limits;
}

std::vector<PassTime> time_read(ThreadPool& pool, size_t bytes, int repeats, size_t cold_bytes,
                                bool huge_pages) {
  if (!detect_cpu_features().avx2) throw std::invalid_argument("time_read needs AVX2");
  const size_t copies = std::max<size_t>(1, (cold_bytes + bytes - 1) / bytes);
  const size_t part = bytes / size_t(pool.threads()) / 64 * 64;
  const Pages memory(copies * bytes, huge_pages);
  std::memset(memory.as<uint8_t>(), 1, copies * bytes);
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

std::vector<PassTime> time_linear(ThreadPool& pool, const KernelTable& table, const PackedMatrix& matrix,
                                  Activations activations, int batch, int repeats, size_t cold_bytes,
                                  bool huge_pages) {
  const size_t bytes = matrix.bytes(), copies = std::max<size_t>(1, (cold_bytes + bytes - 1) / bytes);
  const Pages weights(copies * bytes, huge_pages);
  for (size_t i = 0; i < copies; ++i) std::memcpy(weights.as<uint8_t>() + i * bytes, matrix.data, bytes);

  const size_t inputs = size_t(batch) * size_t(matrix.cols),
               outputs = size_t(batch) * size_t(padded_stride(matrix.rows));
  const size_t groups = matrix.is_integer() ? size_t(batch) * size_t(matrix.blocks()) : 0;
  const Pages x(inputs * sizeof(float), true), y(outputs * sizeof(float), true);
  const Pages values(inputs, true), low_values(inputs, true);
  const Pages scales(groups * sizeof(float), true), starts(groups * sizeof(int32_t), true),
      offsets(groups * sizeof(float), true);
  for (size_t i = 0; i < inputs; ++i)
    x.as<float>()[i] = float(int(i * 2654435761u >> 20 & 255) - 128) / 64.0f;
  const QuantizedRows q{
      .values = values.as<int8_t>(),
      .low_values = activations == Activations::kInt8TwoTerms ? low_values.as<int8_t>() : nullptr,
      .scales = scales.as<float>(),
      .starts = starts.as<int32_t>(),
      .offsets = offsets.as<float>(),
      .rows = batch,
      .cols = matrix.cols,
      .group = matrix.group};
  const FloatRows floats{x.as<float>(), matrix.cols, batch, matrix.cols};
  const Pages halves(size_t(Bf16Rows::size(batch, matrix.cols)) * sizeof(uint16_t), true);
  const Bf16Rows rounded(halves.as<uint16_t>(), batch, matrix.cols);
  if (activations == Activations::kBf16) {
    table.round_rows(floats, rounded, 0, 0);
  } else if (activations != Activations::kFp32) {
    table.quantize_rows(floats, q, 0, 0);
  }

  const LinearOutput out{y.as<float>(), padded_stride(matrix.rows), nullptr, false};  // as in the engine
  std::vector<PassTime> times = time_passes(pool, repeats + 1, [&](int thread, int pass) {
    PackedMatrix w = matrix;
    w.data = weights.as<uint8_t>() + bytes * (size_t(pass) % copies);
    const Range tiles = share(w.tiles(), thread, pool.threads());
    if (activations == Activations::kBf16) {
      table.linear_bf16(w, rounded, out, tiles.begin, tiles.end);
    } else if (activations == Activations::kFp32) {
      table.linear_fp32(w, floats, out, tiles.begin, tiles.end);
    } else {
      table.linear_int8(w, q, out, tiles.begin, tiles.end);
    }
  });
  times.erase(times.begin());
  return times;
}

double measure_barrier_ns(int threads, std::vector<int> cpus, int rounds) {
  ThreadPool pool(threads, std::move(cpus));
  std::vector<int> rounds_done(size_t(threads) * 16, 0);  // a cache line each
  std::atomic<bool> failed{false};
  const auto begin = std::chrono::steady_clock::now();
  pool.run([&](int thread) {
    const int next = (thread + 1) % threads;
    for (int round = 1; round <= rounds; ++round) {
      rounds_done[size_t(thread) * 16] = round;
      pool.barrier();
      if (rounds_done[size_t(next) * 16] < round) failed = true;
    }
  });
  const std::chrono::duration<double, std::nano> elapsed = std::chrono::steady_clock::now() - begin;
  if (failed) throw std::logic_error("a thread passed the barrier before the others had arrived");
  return elapsed.count() / rounds;
}

}  // namespace redoubt
