// Timings of linear kernels and of the machine's limits. Knows nothing of models; keeps no state.
#include "measure.h"

#include <immintrin.h>
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <new>

#include "cpu.h"

namespace redoubt {
namespace {

double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Zeroed pages of the ordinary size, as a mapped model file has them.
class Pages {
 public:
  explicit Pages(size_t bytes) : bytes_(std::max<size_t>(bytes, 64)) {
    data_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data_ == MAP_FAILED) throw std::bad_alloc();
    madvise(data_, bytes_, MADV_NOHUGEPAGE);
  }
  ~Pages() { munmap(data_, bytes_); }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  template <typename T>
  T* as() const {
    return static_cast<T*>(data_);
  }

 private:
  size_t bytes_;
  void* data_;
};

// Seconds of each of `repeats` passes of work(thread, pass) on all threads.
std::vector<double> time_passes(ThreadPool& pool, int repeats, const std::function<void(int, int)>& work) {
  std::vector<double> seconds;
  seconds.reserve(size_t(repeats));
  pool.run([&](int thread) {
    for (int pass = 0; pass < repeats; ++pass) {
      pool.barrier();
      const double begin = now_s();
      work(thread, pass);
      pool.barrier();
      if (thread == 0) seconds.push_back(now_s() - begin);
    }
  });
  return seconds;
}

double best(const std::vector<double>& seconds) { return *std::min_element(seconds.begin(), seconds.end()); }

}  // namespace
}  // namespace redoubt

#pragma GCC push_options
#pragma GCC target("avx2,fma")
namespace redoubt::avx2 {
namespace {

void read_stream(const uint8_t* data, size_t bytes) {
  constexpr size_t kPrefetchBytes = 4096;
  __m256i seen = _mm256_setzero_si256();
  for (size_t i = 0; i + 64 <= bytes; i += 64) {
    _mm_prefetch(data + i + kPrefetchBytes, _MM_HINT_T0);
    seen = _mm256_or_si256(seen, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(data + i)));
    seen = _mm256_or_si256(seen, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(data + i + 32)));
  }
  __asm__ volatile("" ::"x"(seen));
}

void multiply_add_fp32(int64_t iterations) {
  __m256 acc[12];
  for (int i = 0; i < 12; ++i) acc[i] = _mm256_set1_ps(float(i));
  const __m256 factor = _mm256_set1_ps(0.5f);
  for (int64_t n = 0; n < iterations; ++n) {
#pragma GCC unroll 12
    for (int i = 0; i < 12; ++i) acc[i] = _mm256_fmadd_ps(acc[i], factor, factor);
  }
  for (int i = 0; i < 12; ++i) __asm__ volatile("" ::"x"(acc[i]));
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
  for (int i = 0; i < kAccumulators; ++i) acc[i] = _mm512_set1_epi32(i);
  const __m512i codes = _mm512_set1_epi8(3);
  for (int64_t n = 0; n < iterations; ++n) {
#pragma GCC unroll 24
    for (int i = 0; i < kAccumulators; ++i) acc[i] = _mm512_dpbusd_epi32(acc[i], codes, codes);
  }
  for (int i = 0; i < kAccumulators; ++i) __asm__ volatile("" ::"v"(acc[i]));
}

void multiply_add_fp32(int64_t iterations) {
  __m512 acc[kAccumulators];
  for (int i = 0; i < kAccumulators; ++i) acc[i] = _mm512_set1_ps(float(i));
  const __m512 factor = _mm512_set1_ps(0.5f);
  for (int64_t n = 0; n < iterations; ++n) {
#pragma GCC unroll 24
    for (int i = 0; i < kAccumulators; ++i) acc[i] = _mm512_fmadd_ps(acc[i], factor, factor);
  }
  for (int i = 0; i < kAccumulators; ++i) __asm__ volatile("" ::"v"(acc[i]));
}

}  // namespace
}  // namespace redoubt::avx512_vnni
#pragma GCC pop_options

namespace redoubt {
namespace {

constexpr size_t kStreamBytes = size_t(512) << 20;
constexpr int64_t kIterations = 1'000'000;

double passes_per_s(ThreadPool& pool, const std::function<void(int, int)>& work) {
  return 1.0 / best(time_passes(pool, 8, work));
}

}  // namespace

MachineLimits measure_limits(ThreadPool& pool) {
  const CpuFeatures cpu = detect_cpu_features();
  const double threads = pool.threads();
  MachineLimits limits;
  if (!cpu.avx2) return limits;
  const Pages stream(kStreamBytes);
  std::memset(stream.as<uint8_t>(), 1, kStreamBytes);
  limits.read_bytes_per_s = double(kStreamBytes) * passes_per_s(pool, [&](int thread, int) {
                              const size_t part = kStreamBytes / size_t(pool.threads());
                              avx2::read_stream(stream.as<uint8_t>() + part * size_t(thread), part);
                            });
  if (cpu.avx512_vnni) {
    const double operations = threads * double(kIterations) * avx512_vnni::kAccumulators * 16;
    limits.vnni_macs_per_s =
        operations * 4 * passes_per_s(pool, [](int, int) { avx512_vnni::multiply_add_int8(kIterations); });
    limits.fma_fp32_flops_per_s =
        operations * 2 * passes_per_s(pool, [](int, int) { avx512_vnni::multiply_add_fp32(kIterations); });
  } else {
    limits.fma_fp32_flops_per_s = threads * double(kIterations) * 12 * 8 * 2 *
                                  passes_per_s(pool, [](int, int) { avx2::multiply_add_fp32(kIterations); });
  }
  return limits;
}

std::vector<double> time_linear(ThreadPool& pool, const KernelTable& table, const PackedMatrix& matrix,
                                Activations activations, int batch, int repeats, size_t cold_bytes) {
  const size_t bytes = matrix.bytes(), copies = std::max<size_t>(1, (cold_bytes + bytes - 1) / bytes);
  const Pages weights(copies * bytes);
  for (size_t i = 0; i < copies; ++i) std::memcpy(weights.as<uint8_t>() + i * bytes, matrix.data, bytes);

  const size_t inputs = size_t(batch) * size_t(matrix.cols), outputs = size_t(batch) * size_t(matrix.rows);
  const size_t groups = matrix.is_integer() ? size_t(batch) * size_t(matrix.blocks()) : 0;
  const Pages x(inputs * sizeof(float)), y(outputs * sizeof(float)), values(inputs);
  const Pages scales(groups * sizeof(float)), sums(groups * sizeof(int32_t));
  for (size_t i = 0; i < inputs; ++i)
    x.as<float>()[i] = float(int(i * 2654435761u >> 20 & 255) - 128) / 64.0f;
  const QuantizedRows q{values.as<int8_t>(), scales.as<float>(), sums.as<int32_t>(), batch,
                        matrix.cols,         matrix.group};
  if (activations == Activations::kInt8) table.quantize_rows(x.as<float>(), matrix.cols, q, 0, batch);

  const size_t scratch_bytes = (table.linear_scratch_bytes(matrix, batch) + 4095) / 4096 * 4096;
  const Pages scratch(scratch_bytes * size_t(pool.threads()));
  const LinearOutput out{y.as<float>(), matrix.rows, nullptr, false};
  std::vector<double> seconds = time_passes(pool, repeats + 1, [&](int thread, int pass) {
    PackedMatrix w = matrix;
    w.data = weights.as<uint8_t>() + bytes * (size_t(pass) % copies);
    const Range tiles = share(w.tiles(), thread, pool.threads());
    void* own = scratch.as<uint8_t>() + scratch_bytes * size_t(thread);
    if (activations == Activations::kInt8) {
      table.linear_int8(w, q, out, tiles.begin, tiles.end, own);
    } else {
      table.linear_fp32(w, {x.as<float>(), w.cols, batch, w.cols}, out, tiles.begin, tiles.end, own);
    }
  });
  seconds.erase(seconds.begin());
  return seconds;
}

}  // namespace redoubt
