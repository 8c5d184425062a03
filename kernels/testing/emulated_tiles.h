// AMX tile registers in plain C++, so that kernels of AmxTiles can be tested on processors without AMX.
// Follows the Intel SDM, volume 2, the instructions named below.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "contract/float_formats.h"
#include "simd/amx_tiles.h"

namespace redoubt {

// AmxTiles in memory. Where the processor would raise a fault, the process ends, with the reason.
class EmulatedTiles {
 public:
  explicit EmulatedTiles(const TileConfig& config) : config_(config) {
    require(config.palette == 1 && config.start_row == 0, "ldtilecfg: not palette 1 from row 0");
    for (uint8_t byte : config.reserved) require(byte == 0, "ldtilecfg: a reserved byte is not 0");
    for (int tile = 0; tile < 16; ++tile) {
      const int rows = config.rows[tile], bytes = config.row_bytes[tile];
      require((rows == 0) == (bytes == 0), "ldtilecfg: rows without bytes, or bytes without rows");
      require(tile < kTileRegisters || rows == 0, "ldtilecfg: a register that does not exist");
      require(rows <= kTileRows && bytes <= kTileRowBytes, "ldtilecfg: a register larger than 16 rows of 64");
    }
  }
  EmulatedTiles(const EmulatedTiles&) = delete;
  EmulatedTiles& operator=(const EmulatedTiles&) = delete;

  template <int kTile>
  [[gnu::noinline]] void load(const void* memory, int64_t stride) {
    require(is_configured(kTile), "tileloadd: the register has no shape");
    std::memset(registers_[kTile], 0, sizeof registers_[kTile]);
    for (int row = 0; row < config_.rows[kTile]; ++row) {
      std::memcpy(registers_[kTile][row], static_cast<const char*>(memory) + row * stride,
                  config_.row_bytes[kTile]);
    }
  }
  template <int kTile>
  void load_streamed(const void* memory, int64_t stride) {
    load<kTile>(memory, stride);
  }
  template <int kTile>
  [[gnu::noinline]] void store(void* memory, int64_t stride) const {
    require(is_configured(kTile), "tilestored: the register has no shape");
    for (int row = 0; row < config_.rows[kTile]; ++row) {
      std::memcpy(static_cast<char*>(memory) + row * stride, registers_[kTile][row],
                  config_.row_bytes[kTile]);
    }
  }
  template <int kTile>
  [[gnu::noinline]] void zero() {
    require(is_configured(kTile), "tilezero: the register has no shape");
    std::memset(registers_[kTile], 0, sizeof registers_[kTile]);
  }
  template <int kSums, int kRows, int kColumns>
  void dot_product() {
    static_assert(kSums != kRows && kSums != kColumns && kRows != kColumns);
    dot_product(kSums, kRows, kColumns);
  }
  template <int kSums, int kRows, int kColumns>
  void dot_product_bf16() {
    static_assert(kSums != kRows && kSums != kColumns && kRows != kColumns);
    dot_product_bf16(kSums, kRows, kColumns);
  }

 private:
  bool is_configured(int tile) const { return config_.rows[tile] != 0; }

  static void require(bool met, const char* reason) {
    if (met) return;
    std::fprintf(stderr, "emulated AMX: %s\n", reason);
    std::abort();
  }

  // The conditions of all products on the shapes.
  void check_product(int sums, int rows_tile, int columns_tile) const {
    for (int tile : {sums, rows_tile, columns_tile}) {
      require(is_configured(tile), "product: a register has no shape");
      require(config_.row_bytes[tile] % 4 == 0, "product: rows that are no multiple of 4 bytes");
    }
    require(config_.rows[sums] == config_.rows[rows_tile], "product: sums and first factor differ in rows");
    require(config_.row_bytes[rows_tile] / 4 == config_.rows[columns_tile],
            "product: the factors differ in depth");
    require(config_.row_bytes[sums] == config_.row_bytes[columns_tile],
            "product: sums and second factor differ in columns");
  }

  // "TDPBSSD". Everything beyond the columns of `sums` is zero already, because shapes cannot change.
  [[gnu::noinline]] void dot_product(int sums, int rows_tile, int columns_tile) {
    check_product(sums, rows_tile, columns_tile);
    const int depth = config_.row_bytes[rows_tile] / 4, columns = config_.row_bytes[sums] / 4;
    for (int m = 0; m < config_.rows[sums]; ++m) {
      uint32_t row[kTileRowBytes / 4];  // sums wrap
      std::memcpy(row, registers_[sums][m], sizeof row);
      for (int k = 0; k < depth; ++k) {
        for (int n = 0; n < columns; ++n) {
          for (int i = 0; i < 4; ++i) {
            row[n] += uint32_t(int8_t(registers_[rows_tile][m][4 * k + i]) *
                               int8_t(registers_[columns_tile][k][4 * n + i]));
          }
        }
      }
      std::memcpy(registers_[sums][m], row, size_t(columns) * 4);
    }
  }

  // "TDPBF16PS": the first numbers of the pairs and the second ones are summed separately, each from 0.
  // Subnormal numbers count as 0.
  [[gnu::noinline]] void dot_product_bf16(int sums, int rows_tile, int columns_tile) {
    check_product(sums, rows_tile, columns_tile);
    const int depth = config_.row_bytes[rows_tile] / 4, columns = config_.row_bytes[sums] / 4;
    for (int m = 0; m < config_.rows[sums]; ++m) {
      for (int n = 0; n < columns; ++n) {
        float apart[2] = {};
        for (int k = 0; k < depth; ++k) {
          for (int i = 0; i < 2; ++i) {
            const float factor = bf16_at(rows_tile, m, 2 * k + i),
                        other = bf16_at(columns_tile, k, 2 * n + i);
            apart[i] = flush_subnormal(std::fma(factor, other, apart[i]));
          }
        }
        float sum;
        uint8_t* const place = &registers_[sums][m][4 * n];
        std::memcpy(&sum, place, sizeof sum);
        sum = flush_subnormal(flush_subnormal(sum) + flush_subnormal(apart[0] + apart[1]));
        std::memcpy(place, &sum, sizeof sum);
      }
    }
  }
  float bf16_at(int tile, int row, int at) const {
    uint16_t bits;
    std::memcpy(&bits, &registers_[tile][row][2 * at], sizeof bits);
    return flush_subnormal(bf16_to_float(bits));
  }

  TileConfig config_;
  uint8_t registers_[kTileRegisters][kTileRows][kTileRowBytes] = {};
};

}  // namespace redoubt
