// The angles of rotary embeddings. Knows no kernel and no heads.
#pragma once

#include <cstdint>
#include <vector>

#include "model/config.h"

namespace redoubt {

// Cosines and sines of token positions, the layout of KernelTable::rope.
class RopeAngles {
 public:
  // max_positions: the longest context, which LongRoPE's choice of frequencies depends on.
  RopeAngles(const RopeConfig& config, int32_t max_positions);
  int32_t rotary_dim() const { return config_.rotary_dim; }
  // out: [rotary_dim / 2] cosines, then as many sines. Angles are computed in double.
  void fill(int32_t position, float* out) const;
  // Whether frequencies are the same at all positions, so that a stored key can be moved to another one.
  bool is_relative() const { return !config_.dynamic.has_value(); }
  // The rotation of a rotated key by `positions` more positions. Same layout, without the attention factor,
  // which the key already has.
  void fill_turn(int32_t positions, float* out) const;

 private:
  RopeConfig config_;  // with the frequencies and the factor that are used
};

}  // namespace redoubt
