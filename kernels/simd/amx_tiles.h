// AMX tile registers. Follows the Intel SDM: volume 1, "Programming with Intel
// AMX", and volume 2, the instructions named below. Knows no kernel, and not who may use tiles
// (machine/cpu.h).
#pragma once

#include <cstdint>

namespace redoubt {

inline constexpr int kTileRegisters = 8;
inline constexpr int kTileRows = 16;
inline constexpr int kTileRowBytes = 64;

// Operand of ldtilecfg for palette 1: the shape of every register. A register left at zero can't be used.
struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};  // registers 8 to 15 do not exist: zero
  uint8_t rows[16] = {};

  void shape(int tile, int tile_rows, int bytes) {
    rows[tile] = uint8_t(tile_rows);
    row_bytes[tile] = uint16_t(bytes);
  }
};
static_assert(sizeof(TileConfig) == 64);

// The processor's registers, configured from construction to destruction. Instructions are
// written as text, because the compiler's intrinsics do not say which memory they read: it could drop or
// delay stores before them.
class AmxTiles {
 public:
  explicit AmxTiles(const TileConfig& config) { __asm__ volatile("ldtilecfg %0" : : "m"(config) : "memory"); }
  ~AmxTiles() { __asm__ volatile("tilerelease" : : : "memory"); }
  AmxTiles(const AmxTiles&) = delete;
  AmxTiles& operator=(const AmxTiles&) = delete;

  // The register's rows, `stride` bytes apart in memory.
  template <int kTile>
  [[gnu::always_inline]] void load(const void* memory, int64_t stride) {
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(memory), "r"(stride), "i"(kTile) : "memory");
  }
  // The same with a hint that the first-level cache is better kept for other data.
  template <int kTile>
  [[gnu::always_inline]] void load_streamed(const void* memory, int64_t stride) {
    __asm__ volatile("tileloaddt1 (%0,%1,1), %%tmm%c2" : : "r"(memory), "r"(stride), "i"(kTile) : "memory");
  }
  template <int kTile>
  [[gnu::always_inline]] void store(void* memory, int64_t stride) {
    __asm__ volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(memory), "r"(stride), "i"(kTile) : "memory");
  }
  template <int kTile>
  [[gnu::always_inline]] void zero() {
    __asm__ volatile("tilezero %%tmm%c0" : : "i"(kTile));
  }
  // sums[m][n] (int32) += the dot products over k of rows[m][4k .. 4k + 4] and columns[k][4n .. 4n + 4], both
  // int8.
  template <int kSums, int kRows, int kColumns>
  [[gnu::always_inline]] void dot_product() {
    __asm__ volatile("tdpbssd %%tmm%c0, %%tmm%c1, %%tmm%c2" : : "i"(kColumns), "i"(kRows), "i"(kSums));
  }
  // The same in fp32, over pairs of bf16: rows[m][2k .. 2k + 2] and columns[k][2n .. 2n + 2].
  template <int kSums, int kRows, int kColumns>
  [[gnu::always_inline]] void dot_product_bf16() {
    __asm__ volatile("tdpbf16ps %%tmm%c0, %%tmm%c1, %%tmm%c2" : : "i"(kColumns), "i"(kRows), "i"(kSums));
  }
};

}  // namespace redoubt
