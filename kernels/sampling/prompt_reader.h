// Readers get rows of a prompt as a step computes them, and compute the log-probability of every token, or
// one vector for the whole prompt. A reader belongs to one request. Its rows come in chunks; after preemption
// they come again from the first, and the result is the same.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <vector>

#include "sampling/token_scores.h"

namespace redoubt {

class PromptReader {
 public:
  virtual ~PromptReader() = default;

  // Number of last rows to read, in a step with `queries` tokens after the first `context`.
  virtual int32_t rows_wanted(int32_t context, int32_t queries) const = 0;
  // Whether it reads logits; otherwise hidden states after the final norm.
  virtual bool reads_logits() const = 0;
  // Size of the rows that it was made for.
  virtual int32_t row_size() const = 0;
  // The row of token `index` (from 0). Rows of logits come in any order, from several threads, and may be
  // overwritten; rows of hidden states come in order, from one thread.
  virtual void read(int32_t index, float* row, TokenScorer& scorer) = 0;

  // State that several readers share, if any. Readers of one step may have the same object, unless one of
  // them changes it.
  struct Shared {
    const void* object = nullptr;
    bool changes = false;
  };
  virtual Shared shared() const { return {}; }
};

// The log-probability of each prompt token but the first, given those before it, and the likeliest tokens in
// its place.
class PromptScorer final : public PromptReader {
 public:
  // Throws std::invalid_argument for a token outside the vocabulary, or a `top` out of range.
  PromptScorer(int32_t vocab_size, std::vector<int32_t> prompt, int32_t top);

  int32_t rows_wanted(int32_t context, int32_t queries) const override;
  bool reads_logits() const override { return true; }
  int32_t row_size() const override { return vocab_size_; }
  void read(int32_t index, float* row, TokenScorer& scorer) override;

  const TokenScores& scores() const { return scores_; }  // of prompt tokens 1, 2, ...

 private:
  int32_t vocab_size_;
  std::vector<int32_t> prompt_;
  TokenScores scores_;
};

enum class Pooling : uint8_t { kMean, kLast };

// The mean of the prompt's hidden states after the final norm, or the last of them.
class PromptEmbedder final : public PromptReader {
 public:
  PromptEmbedder(int32_t hidden_size, int32_t prompt_tokens, Pooling pooling);

  int32_t rows_wanted(int32_t context, int32_t queries) const override;
  bool reads_logits() const override { return false; }
  int32_t row_size() const override { return int32_t(sum_.size()); }
  void read(int32_t index, float* row, TokenScorer& scorer) override;

  std::vector<float> embedding() const;

 private:
  int32_t prompt_tokens_;
  Pooling pooling_;
  int32_t rows_read_ = 0;
  std::vector<double> sum_;  // in order of the tokens, so that chunks make no difference
};

}  // namespace redoubt
