// Timings of linear kernels and barriers. Knows nothing of models; keeps no state.
#include "testing/measure.h"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "step/workspace.h"

namespace redoubt {

std::vector<PassTime> time_linear(ThreadPool& pool, const KernelTable& table, const PackedMatrix& matrix,
                                  Activations activations, int batch, int repeats, size_t cold_bytes,
                                  bool huge_pages) {
  const size_t bytes = matrix.bytes(), copies = std::max<size_t>(1, (cold_bytes + bytes - 1) / bytes);
  const MeasuredPages weights(copies * bytes, huge_pages);
  for (size_t i = 0; i < copies; ++i) std::memcpy(weights.as<uint8_t>() + i * bytes, matrix.data, bytes);

  const size_t inputs = size_t(batch) * size_t(matrix.cols),
               outputs = size_t(batch) * size_t(padded_stride(matrix.rows));
  const size_t groups = matrix.is_integer() ? size_t(batch) * size_t(matrix.blocks()) : 0;
  const MeasuredPages x(inputs * sizeof(float), true), y(outputs * sizeof(float), true);
  const MeasuredPages values(inputs, true), low_values(inputs, true);
  const MeasuredPages scales(groups * sizeof(float), true), starts(groups * sizeof(int32_t), true),
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
  const MeasuredPages halves(size_t(Bf16Rows::size(batch, matrix.cols)) * sizeof(uint16_t), true);
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
