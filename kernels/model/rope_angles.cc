// Angles of positions (contract: model/rope_angles.h).
#include "model/rope_angles.h"

#include <cmath>

namespace redoubt {
namespace {

// Theta grows with the length. Here the length is the token's own position plus one, which is what decoding
// one token at a time gives; so a key never depends on how the prompt was chunked.
double dynamic_theta(const RopeConfig& rope, double length) {
  const DynamicRope& dynamic = *rope.dynamic;
  const double growth = dynamic.factor * length / dynamic.trained_positions - (dynamic.factor - 1);
  return dynamic.theta * std::pow(growth, double(rope.rotary_dim) / (rope.rotary_dim - 2));
}

}  // namespace

RopeAngles::RopeAngles(const RopeConfig& config, int32_t max_positions) : config_(config) {
  if (config.long_frequencies.empty() || max_positions <= config.short_positions) return;
  config_.frequencies = config.long_frequencies;
  config_.attention_factor = config.long_attention_factor;
}

void RopeAngles::fill(int32_t position, float* out) const {
  const int half = config_.rotary_dim / 2;
  const bool grown = config_.dynamic && position + 1.0 > config_.dynamic->trained_positions;
  const double theta = grown ? dynamic_theta(config_, position + 1.0) : 0;
  for (int i = 0; i < half; ++i) {
    const double frequency =
        grown ? std::pow(theta, -2.0 * i / config_.rotary_dim) : config_.frequencies[size_t(i)];
    const double angle = position * frequency;
    out[i] = float(std::cos(angle) * config_.attention_factor);
    out[half + i] = float(std::sin(angle) * config_.attention_factor);
  }
}

void RopeAngles::fill_turn(int32_t positions, float* out) const {
  const int half = config_.rotary_dim / 2;
  for (int i = 0; i < half; ++i) {
    const double angle = positions * config_.frequencies[size_t(i)];
    out[i] = float(std::cos(angle));
    out[half + i] = float(std::sin(angle));
  }
}

}  // namespace redoubt
