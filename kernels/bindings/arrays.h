// Arrays from and to Python: the types that functions take, and new arrays in aligned memory.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstddef>
#include <memory>
#include <new>

namespace redoubt {

template <typename T, int kDims>
using Input = nanobind::ndarray<const T, nanobind::ndim<kDims>, nanobind::c_contig, nanobind::device::cpu>;
// Rows may be further apart than they are long, as in the engine.
template <typename T>
using Strided = nanobind::ndarray<T, nanobind::ndim<2>, nanobind::device::cpu>;

inline constexpr size_t kAlignment = 64;

struct AlignedDelete {
  void operator()(void* memory) const { ::operator delete[](memory, std::align_val_t(kAlignment)); }
};
using AlignedBytes = std::unique_ptr<std::byte, AlignedDelete>;

inline AlignedBytes allocate_aligned(size_t bytes) {
  return AlignedBytes(static_cast<std::byte*>(::operator new[](bytes, std::align_val_t(kAlignment))));
}

// A new NumPy array that owns 64-byte aligned memory.
template <typename T>
struct Output {
  AlignedBytes memory;
  size_t shape[2];

  Output(size_t rows, size_t cols) : memory(allocate_aligned(rows * cols * sizeof(T))), shape{rows, cols} {}
  T* data() { return reinterpret_cast<T*>(memory.get()); }
  nanobind::ndarray<nanobind::numpy, T, nanobind::ndim<2>> release() {
    void* raw = memory.release();
    nanobind::capsule owner(raw, [](void* pointer) noexcept { AlignedDelete{}(pointer); });
    return nanobind::ndarray<nanobind::numpy, T, nanobind::ndim<2>>(raw, 2, shape, owner);
  }
};

}  // namespace redoubt
