// Readers of prompts (contract: sampling/prompt_reader.h).
#include "sampling/prompt_reader.h"

#include <algorithm>
#include <string>
#include <utility>

namespace redoubt {

PromptScorer::PromptScorer(int32_t vocab_size, std::vector<int32_t> prompt, int32_t top)
    : vocab_size_(vocab_size), prompt_(std::move(prompt)) {
  for (const int32_t token : prompt_) {
    if (token < 0 || token >= vocab_size) {
      throw std::invalid_argument("prompt: token " + std::to_string(token) +
                                  " is outside the vocabulary of " + std::to_string(vocab_size));
    }
  }
  if (prompt_.empty()) throw std::invalid_argument("prompt: it has no tokens");
  if (top < 0 || top > std::min(vocab_size, kMostTopTokens)) {
    throw std::invalid_argument("top: " + std::to_string(top) + " is not in 0 .. " +
                                std::to_string(std::min(vocab_size, kMostTopTokens)));
  }
  const size_t count = prompt_.size() - 1;
  scores_.top = top;
  scores_.logprobs.resize(count);
  scores_.top_tokens.resize(count * size_t(top));
  scores_.top_logprobs.resize(count * size_t(top));
}

// The row of the prompt's last token predicts the first token of the answer, which is not scored.
int32_t PromptScorer::rows_wanted(int32_t context, int32_t queries) const {
  return context + 1 < int32_t(prompt_.size()) ? queries : 0;
}

void PromptScorer::read(int32_t index, float* row, TokenScorer& scorer) {
  if (index + 1 >= int32_t(prompt_.size())) return;
  const size_t i = size_t(index), top = size_t(scores_.top);
  scores_.logprobs[i] =
      scorer.score(row, vocab_size_, prompt_[i + 1], scores_.top, scores_.top_tokens.data() + i * top,
                   scores_.top_logprobs.data() + i * top);
}

PromptEmbedder::PromptEmbedder(int32_t hidden_size, int32_t prompt_tokens, Pooling pooling)
    : prompt_tokens_(prompt_tokens), pooling_(pooling), sum_(size_t(std::max(hidden_size, 0))) {
  if (hidden_size < 1) throw std::invalid_argument("hidden_size: it must be at least 1");
  if (prompt_tokens < 1) throw std::invalid_argument("prompt_tokens: it must be at least 1");
}

int32_t PromptEmbedder::rows_wanted(int32_t context, int32_t queries) const {
  if (context >= prompt_tokens_) return 0;
  if (pooling_ == Pooling::kMean) return queries;
  return context + queries >= prompt_tokens_ ? 1 : 0;
}

void PromptEmbedder::read(int32_t index, float* row, TokenScorer&) {
  if (index == 0 || pooling_ == Pooling::kLast) {
    std::fill(sum_.begin(), sum_.end(), 0.0);
    rows_read_ = 0;
  }
  for (size_t i = 0; i < sum_.size(); ++i) sum_[i] += row[i];
  ++rows_read_;
}

std::vector<float> PromptEmbedder::embedding() const {
  std::vector<float> mean(sum_.size());
  for (size_t i = 0; i < mean.size(); ++i) mean[i] = float(sum_[i] / std::max(rows_read_, 1));
  return mean;
}

}  // namespace redoubt
