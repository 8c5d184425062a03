// Routing in fp32 (contract: step/routing.h). The formulas: Shazeer et al. 2017 (top-k of a softmax), and for
// sigmoid scores, groups and the correction bias DeepSeek-V3 (2024), section 2.1.2.
#include "step/routing.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace redoubt {
namespace {

constexpr float kLeast = -std::numeric_limits<float>::infinity();

// The place of the largest of values[begin, end) that is not taken; the lowest of equal ones. -1 if all are
// taken.
int32_t place_of_largest(const float* values, const std::vector<bool>& taken, int32_t begin, int32_t end) {
  int32_t best = -1;
  for (int32_t i = begin; i < end; ++i) {
    if (taken[size_t(i)]) continue;
    const float value = std::isnan(values[i]) ? kLeast : values[i];
    const float largest = best < 0 ? kLeast : std::isnan(values[best]) ? kLeast : values[best];
    if (best < 0 || value > largest) best = i;
  }
  return best;
}

// Marks the experts of all groups but the best: by the sum of a group's two largest values where there is a
// correction bias (DeepSeek-V3), else by its largest.
void exclude_groups(const ExpertsConfig& config, const float* values, std::vector<bool>& taken) {
  const int32_t size = config.count / config.groups;
  std::vector<float> sums;
  for (int32_t group = 0; group < config.groups; ++group) {
    std::vector<float> sorted(values + group * size, values + (group + 1) * size);
    std::sort(sorted.begin(), sorted.end(), [](float a, float b) { return a > b || (a == a && b != b); });
    sums.push_back(config.correction_bias && size > 1 ? sorted[0] + sorted[1] : sorted[0]);
  }
  std::vector<bool> chosen(sums.size());
  for (int32_t i = 0; i < config.chosen_groups; ++i) {
    chosen[size_t(place_of_largest(sums.data(), chosen, 0, config.groups))] = true;
  }
  for (int32_t i = 0; i < config.count; ++i) {
    if (!chosen[size_t(i / size)]) taken[size_t(i)] = true;
  }
}

float sigmoid(float x) { return float(1.0 / (1.0 + std::exp(-double(x)))); }

// exp(scores - largest) over their sum, of `count` numbers.
void softmax(float* scores, int32_t count) {
  const float largest = *std::max_element(scores, scores + count);
  double sum = 0;
  for (int32_t i = 0; i < count; ++i) sum += std::exp(double(scores[i]) - largest);
  for (int32_t i = 0; i < count; ++i) scores[i] = float(std::exp(double(scores[i]) - largest) / sum);
}

}  // namespace

void choose_experts(const ExpertsConfig& config, const float* correction_bias, float* scores,
                    int32_t* experts, float* factors) {
  // A softmax keeps the order. Where factors are divided by their sum, its other terms cancel out.
  const bool of_chosen = config.scoring == Scoring::kSoftmaxOfChosen ||
                         (config.scoring == Scoring::kSoftmax && config.renormalize);
  if (config.scoring == Scoring::kSigmoid) {
    for (int32_t i = 0; i < config.count; ++i) scores[i] = sigmoid(scores[i]);
  } else if (!of_chosen || correction_bias != nullptr) {
    softmax(scores, config.count);
  }
  std::vector<float> corrected;
  const float* values = scores;
  if (correction_bias != nullptr) {
    corrected.assign(scores, scores + config.count);
    for (int32_t i = 0; i < config.count; ++i) corrected[size_t(i)] += correction_bias[i];
    values = corrected.data();
  }
  std::vector<bool> taken(size_t(config.count));
  if (config.groups > 1) exclude_groups(config, values, taken);
  for (int32_t i = 0; i < config.per_token; ++i) {
    experts[i] = place_of_largest(values, taken, 0, config.count);
    taken[size_t(experts[i])] = true;
  }
  std::sort(experts, experts + config.per_token);
  for (int32_t i = 0; i < config.per_token; ++i) factors[i] = scores[experts[i]];
  if (of_chosen && correction_bias == nullptr) {
    softmax(factors, config.per_token);
  } else if (config.renormalize) {
    const double sum = std::accumulate(factors, factors + config.per_token, 1e-20);
    for (int32_t i = 0; i < config.per_token; ++i) factors[i] = float(factors[i] / sum);
  }
  for (int32_t i = 0; i < config.per_token; ++i) factors[i] *= config.scale;
}

ExpertRows::ExpertRows(int64_t pairs, int32_t experts)
    : rows_(size_t(pairs)), factors_(size_t(pairs)), share_of_(size_t(pairs)), begins_(size_t(experts) + 1) {
  shares_.reserve(size_t(experts));
}

void ExpertRows::sort(const ExpertsConfig& config, const int32_t* experts, const float* factors, int32_t rows,
                      int32_t answers) {
  pairs_ = rows * config.per_token;
  std::fill(begins_.begin(), begins_.end(), 0);
  for (int32_t i = 0; i < pairs_; ++i) ++begins_[size_t(experts[i]) + 1];
  std::partial_sum(begins_.begin(), begins_.end(), begins_.begin());
  shares_.clear();
  for (int32_t expert = 0; expert < config.count; ++expert) {
    const int32_t first = begins_[size_t(expert)], count = begins_[size_t(expert) + 1] - first;
    if (count == 0) continue;
    std::fill_n(share_of_.begin() + first, count, int32_t(shares_.size()));
    shares_.push_back({.expert = expert, .first_pair = first, .rows = count, .answers = 0});
  }
  for (int32_t i = 0; i < pairs_; ++i) {
    const int32_t pair = begins_[size_t(experts[i])]++, row = i / config.per_token;
    rows_[size_t(pair)] = row;
    factors_[size_t(pair)] = factors[i];
    if (row < answers) ++shares_[size_t(share_of_[size_t(pair)])].answers;
  }
}

}  // namespace redoubt
