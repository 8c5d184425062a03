// Log-probabilities (contract: sampling/token_scores.h). No vocabulary is sorted: the likeliest tokens are
// found through the maxima of blocks.
#include "sampling/token_scores.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "simd/numbers.h"

namespace redoubt {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

}  // namespace

float TokenScorer::score(float* logits, int32_t vocab_size, int32_t token, int32_t top, int32_t* top_tokens,
                         float* top_logprobs) {
  const float max = find_maxima(logits, vocab_size);
  find_top(logits, vocab_size, top);
  const float chosen = logits[token];
  const Normalizer logprob = normalizer(logits, vocab_size, max);
  for (size_t i = 0; i < best_.size(); ++i) {
    top_tokens[i] = best_[i].second;
    top_logprobs[i] = logprob(best_[i].first);
  }
  return logprob(chosen);
}

void TokenScorer::log_softmax(float* logits, int32_t vocab_size) {
  weights_.assign(logits, logits + vocab_size);
  const float max = find_maxima(logits, vocab_size);
  const Normalizer logprob = normalizer(weights_.data(), vocab_size, max);
  for (int32_t token = 0; token < vocab_size; ++token) logits[token] = logprob(logits[token]);
}

void TokenScorer::top(const float* values, int32_t vocab_size, int32_t top, int32_t* top_tokens,
                      float* top_values) {
  find_maxima(values, vocab_size);
  find_top(values, vocab_size, top);
  for (size_t i = 0; i < best_.size(); ++i) {
    top_tokens[i] = best_[i].second;
    top_values[i] = best_[i].first;
  }
}

float TokenScorer::Normalizer::operator()(float logit) const {
  if (std::isnan(logit) || logit == -kInfinity) return -kInfinity;
  if (max == kInfinity) return logit == max ? 0.0f : -kInfinity;
  return float(double(logit) - double(max) - log_total);
}

// Uses the logits as working space.
TokenScorer::Normalizer TokenScorer::normalizer(float* logits, int32_t vocab_size, float max) {
  double log_total = 0;
  if (std::isfinite(max)) {
    block_sums_.resize(block_maxima_.size());
    kernels_->softmax_weights(logits, vocab_size, max, kLog2eHigh, block_sums_.data());
    double total = 0;
    for (const float sum : block_sums_) total += sum;
    log_total = std::log(total);
  }
  return {max, log_total};
}

float TokenScorer::find_maxima(const float* logits, int32_t vocab_size) {
  block_maxima_.resize((size_t(vocab_size) + kLogitBlock - 1) / kLogitBlock);
  kernels_->block_maxima(logits, vocab_size, block_maxima_.data());
  return *std::max_element(block_maxima_.begin(), block_maxima_.end());
}

// At least k tokens reach the k-th largest of the blocks' maxima.
void TokenScorer::find_top(const float* logits, int32_t vocab_size, int32_t top) {
  best_.clear();
  if (top == 0) return;
  float bound = -kInfinity;
  if (size_t(top) <= block_maxima_.size()) {
    values_ = block_maxima_;
    std::nth_element(values_.begin(), values_.begin() + (top - 1), values_.end(), std::greater<>());
    bound = values_[size_t(top) - 1];
  }
  for (size_t block = 0; block < block_maxima_.size(); ++block) {
    if (block_maxima_[block] < bound) continue;
    const int32_t begin = int32_t(block) * kLogitBlock, end = std::min(vocab_size, begin + kLogitBlock);
    for (int32_t token = begin; token < end; ++token) {
      if (logits[token] >= bound) best_.emplace_back(logits[token], token);
    }
  }
  const auto before = [](const auto& a, const auto& b) {
    return a.first > b.first || (a.first == b.first && a.second < b.second);
  };
  // NaN was left out. If fewer than `top` numbers are left, the NaN logits of lowest id fill up.
  for (int32_t token = 0; best_.size() < size_t(top); ++token) {
    if (std::isnan(logits[token])) best_.emplace_back(-kInfinity, token);
  }
  std::partial_sort(best_.begin(), best_.begin() + top, best_.end(), before);
  best_.resize(size_t(top));
}

}  // namespace redoubt
