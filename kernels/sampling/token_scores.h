// Log-probabilities of tokens under a row of logits, as the model gives them: at temperature 1, before any
// penalty, bias or mask. Knows no request, and keeps no scores.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "contract/kernel_table.h"

namespace redoubt {

inline constexpr int32_t kMostTopTokens = 1024;

// Scores one row at a time; keeps its working space from row to row.
class TokenScorer {
 public:
  explicit TokenScorer(const KernelTable& kernels) : kernels_(&kernels) {}

  // Writes the likeliest `top` tokens (at most vocab_size; falling, equals in order of id) and their
  // log-probabilities, and returns the log-probability of `token`. `logits` [vocab_size] is overwritten.
  // A log-probability is -infinity where the logit is, or is NaN.
  float score(float* logits, int32_t vocab_size, int32_t token, int32_t top, int32_t* top_tokens,
              float* top_logprobs);

  // Turns logits into log-probabilities in place, the same that `score` gives.
  void log_softmax(float* logits, int32_t vocab_size);

  // Writes the largest `top` of any values, in the order of `score`; NaN counts as -infinity.
  void top(const float* values, int32_t vocab_size, int32_t top, int32_t* top_tokens, float* top_values);

 private:
  // Turns a logit into a log-probability.
  struct Normalizer {
    float max;
    double log_total;
    float operator()(float logit) const;
  };
  Normalizer normalizer(float* logits, int32_t vocab_size, float max);
  float find_maxima(const float* logits, int32_t vocab_size);
  void find_top(const float* logits, int32_t vocab_size, int32_t top);

  const KernelTable* kernels_;
  std::vector<float> block_maxima_;
  std::vector<float> block_sums_;
  std::vector<float> values_;
  std::vector<std::pair<float, int32_t>> best_;
  std::vector<float> weights_;
};

// The scores of several tokens, one after another.
struct TokenScores {
  int32_t top = 0;
  std::vector<float> logprobs;      // [n]
  std::vector<int32_t> top_tokens;  // [n][top]
  std::vector<float> top_logprobs;  // [n][top]
};

}  // namespace redoubt
