// Zeroed memory for activations and KV pages, straight from the kernel: page aligned, in huge pages where it
// is large enough, resident only once it is touched. Knows nothing of what it holds.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <new>
#include <utility>

namespace redoubt {

inline constexpr size_t kCacheLineBytes = 64;

template <typename T>
class AlignedMemory {
 public:
  AlignedMemory() = default;
  // Throws std::bad_alloc.
  explicit AlignedMemory(size_t count) : bytes_(count * sizeof(T)) {
    if (count == 0) return;
    if (count > SIZE_MAX / sizeof(T)) throw std::bad_alloc();
    void* memory =
        mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    constexpr size_t kHugePageBytes = 2 << 20;
    if (bytes_ >= kHugePageBytes) madvise(memory, bytes_, MADV_HUGEPAGE);  // a wish: refusal only costs time
    data_ = static_cast<T*>(memory);
  }
  ~AlignedMemory() {
    if (data_ != nullptr) munmap(data_, bytes_);
  }
  AlignedMemory(AlignedMemory&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  AlignedMemory& operator=(AlignedMemory&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }

  T* data() const { return data_; }
  T& operator[](size_t i) const { return data_[i]; }
  size_t bytes() const { return bytes_; }

 private:
  T* data_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace redoubt
