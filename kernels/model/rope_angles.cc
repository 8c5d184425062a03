// Rotary frequencies and their scalings. Each formula's source stands at its function.
#include <algorithm>
#include <cmath>
#include <numbers>

#include "model/rope_angles.h"

namespace redoubt {
namespace {

constexpr double kTwoPi = 2 * std::numbers::pi;

// RoFormer (Su et al. 2021), equation 15.
std::vector<double> base_frequencies(double theta, int rotary_dim) {
  std::vector<double> frequencies(size_t(rotary_dim / 2));
  for (int i = 0; i < rotary_dim / 2; ++i) frequencies[i] = std::pow(theta, -2.0 * i / rotary_dim);
  return frequencies;
}

// Llama 3.1: long wavelengths are stretched by `factor`, short ones kept, those between are blended.
void scale_llama3(const RopeConfig& rope, std::vector<double>& frequencies) {
  for (double& frequency : frequencies) {
    const double turns = rope.original_max_positions * frequency / kTwoPi;  // in the trained length
    const double blend =
        std::clamp((turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor), 0.0, 1.0);
    frequency *= (1 - blend) / rope.factor + blend;
  }
}

// YaRN (Peng et al. 2023), section 3.2, with the ramp over dimensions that its code and Hugging Face's use.
void scale_yarn(const RopeConfig& rope, std::vector<double>& frequencies) {
  const auto dimension_of = [&](double turns) {  // the pair that makes this many turns in the trained length
    return rope.rotary_dim * std::log(rope.original_max_positions / (turns * kTwoPi)) /
           (2 * std::log(rope.theta));
  };
  double low = dimension_of(rope.beta_fast), high = dimension_of(rope.beta_slow);
  if (rope.truncate) low = std::floor(low), high = std::ceil(high);
  low = std::max(low, 0.0);
  high = std::min(high, rope.rotary_dim - 1.0);
  if (low == high) high += 0.001;
  for (size_t i = 0; i < frequencies.size(); ++i) {
    const double ramp = std::clamp((double(i) - low) / (high - low), 0.0, 1.0);
    frequencies[i] *= ramp / rope.factor + (1 - ramp);
  }
}

// Dynamic NTK (bloc97 and emozilla, 2023): theta grows with the length. Here the length is the token's own
// position plus one, which is what decoding one token at a time gives; so a key never depends on how the
// prompt was chunked.
double dynamic_theta(const RopeConfig& rope, double length) {
  const double growth = rope.factor * length / rope.original_max_positions - (rope.factor - 1);
  return rope.theta * std::pow(growth, double(rope.rotary_dim) / (rope.rotary_dim - 2));
}

}  // namespace

RopeAngles::RopeAngles(const RopeConfig& config)
    : config_(config), frequencies_(base_frequencies(config.theta, config.rotary_dim)) {
  switch (config.type) {
    case RopeType::kDefault:
    case RopeType::kDynamic:
      break;
    case RopeType::kLinear:
      for (double& frequency : frequencies_) frequency /= config.factor;
      break;
    case RopeType::kLlama3:
      scale_llama3(config, frequencies_);
      break;
    case RopeType::kYarn:
      scale_yarn(config, frequencies_);
      break;
  }
}

void RopeAngles::fill(int32_t position, float* out) const {
  const int half = config_.rotary_dim / 2;
  const bool grown = config_.type == RopeType::kDynamic && position + 1.0 > config_.original_max_positions;
  const double theta = grown ? dynamic_theta(config_, position + 1.0) : 0;
  for (int i = 0; i < half; ++i) {
    const double frequency = grown ? std::pow(theta, -2.0 * i / config_.rotary_dim) : frequencies_[i];
    const double angle = position * frequency;
    out[i] = float(std::cos(angle) * config_.attention_factor);
    out[half + i] = float(std::sin(angle) * config_.attention_factor);
  }
}

void RopeAngles::fill_turn(int32_t positions, float* out) const {
  const int half = config_.rotary_dim / 2;
  for (int i = 0; i < half; ++i) {
    const double angle = positions * frequencies_[i];
    out[i] = float(std::cos(angle));
    out[half + i] = float(std::sin(angle));
  }
}

}  // namespace redoubt
