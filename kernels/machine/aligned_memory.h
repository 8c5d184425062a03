// Zeroed memory for activations, KV pages and weights, from mmap(2): page aligned, in whole huge pages if it
// is at least half of one, and resident only once it is touched. Knows nothing of what it holds.
//
// With AddressSanitizer a page follows that must not be touched, nor the bytes before it that were not asked
// for.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <new>
#include <utility>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#endif

namespace redoubt {

inline constexpr size_t kCacheLineBytes = 64;
inline constexpr size_t kPageBytes = 4096;
inline constexpr size_t kHugePageBytes = size_t(2) << 20;

#ifdef __SANITIZE_ADDRESS__
inline constexpr bool kGuarded = true;
inline void guard(void* begin, size_t bytes) { ASAN_POISON_MEMORY_REGION(begin, bytes); }
inline void unguard(void* begin, size_t bytes) { ASAN_UNPOISON_MEMORY_REGION(begin, bytes); }
#else
inline constexpr bool kGuarded = false;
inline void guard(void*, size_t) {}
inline void unguard(void*, size_t) {}
#endif

template <typename T>
class AlignedMemory {
 public:
  AlignedMemory() = default;
  // Throws std::bad_alloc.
  explicit AlignedMemory(size_t count) : bytes_(count * sizeof(T)) {
    if (count == 0) return;
    if (count > (SIZE_MAX - 2 * kHugePageBytes) / sizeof(T)) throw std::bad_alloc();
    const bool is_large = !kGuarded && bytes_ >= kHugePageBytes / 2;
    if (is_large) bytes_ = (bytes_ + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes;
    data_ = static_cast<T*>(map(is_large ? kHugePageBytes : 0));
    guard(reinterpret_cast<std::byte*>(data_) + bytes_, guard_bytes());
  }
  ~AlignedMemory() {
    if (data_ == nullptr) return;
    unguard(reinterpret_cast<std::byte*>(data_) + bytes_, guard_bytes());
    munmap(data_, bytes_ + guard_bytes());
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
  // Gives the memory back to the system; it is zero where it is touched again.
  void release() const {
    if (data_ != nullptr) madvise(data_, bytes_, MADV_DONTNEED);
  }

 private:
  // Bytes to the end of the page after the one that bytes_ ends in; 0 without AddressSanitizer.
  size_t guard_bytes() const { return kGuarded ? 2 * kPageBytes - bytes_ % kPageBytes : 0; }
  // Newer kernels align large mappings themselves; older ones do not, and a huge page needs it.
  void* map(size_t alignment) const {
    const size_t mapped_bytes = bytes_ + guard_bytes() + alignment;
    void* mapped = mmap(nullptr, mapped_bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped == MAP_FAILED) throw std::bad_alloc();
    if (alignment == 0) return mapped;
    std::byte* const begin = static_cast<std::byte*>(mapped);
    const size_t before = (alignment - reinterpret_cast<uintptr_t>(begin) % alignment) % alignment;
    if (before != 0) munmap(begin, before);
    munmap(begin + before + bytes_, alignment - before);
    madvise(begin + before, bytes_, MADV_HUGEPAGE);  // if it is refused, that only costs time
    return begin + before;
  }

  T* data_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace redoubt
