// From one row of logits to one token: penalties, bias, temperature, top-k, top-p, min-p, and a seeded draw.
//
// A Sampler belongs to one request and remembers the tokens it has seen. The draw is counter-based (Philox
// 4x32-10, Salmon et al. 2011) on (seed, number of tokens drawn so far): the same seed gives the same text
// whatever else runs, on every tier.
#pragma once

#include <array>
#include <cstdint>
#include <unordered_map>
#include <utility>
#include <vector>

#include "sampling/token_scores.h"

namespace redoubt {

struct SamplingOptions {
  float temperature = 1.0f;         // 0: greedy (argmax; ties to the lowest id)
  int32_t top_k = 0;                // 0: off
  float top_p = 1.0f;               // (0, 1]
  float min_p = 0.0f;               // [0, 1)
  float repetition_penalty = 1.0f;  // > 0, over prompt and output (Keskar et al. 2019)
  float presence_penalty = 0.0f;    // over output only, as OpenAI defines it
  float frequency_penalty = 0.0f;
  std::vector<std::pair<int32_t, float>> logit_bias;
  uint64_t seed = 0;
  int32_t min_tokens = 0;  // until so many are drawn, none of end_tokens can be
  std::vector<int32_t> end_tokens;
  int32_t logprobs = -1;  // at least 0: keeps each token's log-probability, and those of so many likeliest
  // Above 0: nothing is drawn; the scores of this many likeliest tokens of a row are kept for a search.
  int32_t candidates = 0;
  // Penalties, bias and bars change log-probabilities instead of logits, as transformers' beam search does.
  // They then no longer add up to 1.
  bool penalize_logprobs = false;
};

class Sampler {
 public:
  // Throws std::invalid_argument naming the option that is out of range, or the token outside the vocabulary.
  Sampler(SamplingOptions options, int32_t vocab_size, const std::vector<int32_t>& prompt);

  // Chooses a token and remembers it. `logits` [vocab_size] is used as working space. In this order:
  //   scores are taken of the unchanged logits
  //   repetition penalty: a positive logit of a seen token is divided by it, another multiplied
  //   presence and frequency penalties: logit -= presence + frequency * times, for tokens in the output
  //   bias, the mask and min_tokens (what is barred gets -infinity), then temperature
  //   top-k: keeps all logits >= the k-th largest (ties stay)
  //   top-p: of what is left, renormalized, the fewest likeliest tokens whose probabilities reach top_p (at
  //     least one; equals in order of id)
  //   min-p: of these, the tokens with at least min_p times the largest probability
  // and the draw. NaN never wins; where all logits are NaN or -infinity the answer is 0, and where one is
  // +infinity it is the lowest such id.
  //
  // With `candidates` the result is the likeliest token after penalties, bias and bars. The scores kept are
  // those of this row alone, after all that. Nothing is remembered: a search goes on with `after`.
  int32_t sample(float* logits);

  // Continues as if it had just drawn these tokens, one after another. Throws std::invalid_argument for a
  // token outside the vocabulary, without changes.
  void remember(const std::vector<int32_t>& tokens);

  // A sampler with the same options that has seen and drawn what this one has, and then `token`. Throws
  // std::invalid_argument for a token outside the vocabulary.
  Sampler after(int32_t token) const;

  int32_t vocab_size() const { return vocab_size_; }

  // Rows of masks for the next draws, of which the last one holds for all that follow: one bit per token, the
  // lowest of a word first; 0: it can't be drawn. Only used after set_masked(true).
  std::vector<uint32_t>& masks(int32_t rows);
  void set_masked(bool masked) { masked_ = masked; }

  // Scores of the tokens drawn since the last call.
  TokenScores take_scores();

 private:
  struct Candidate {
    float weight;
    int32_t token;
  };
  void keep_scores_of(int32_t token);
  int32_t keep_candidates(float* logits);
  bool has_penalties() const;
  void apply_penalties(float* logits) const;
  void bar_tokens(float* logits) const;
  int32_t choose(float* logits);
  int32_t first_equal(const float* logits, float value) const;
  double weigh(float* logits, float max, int32_t n);
  int32_t draw_from_all(const float* weights, double total);
  int32_t draw_from_candidates(Candidate cut);
  void keep_top_k(const float* logits, float max);
  void gather(const float* values, float at_least);
  Candidate top_p_cut(double mass);
  double uniform();

  SamplingOptions options_;
  int32_t vocab_size_;
  const KernelTable* kernels_;
  uint64_t drawn_ = 0;
  std::unordered_map<int32_t, int32_t> output_counts_;  // token -> times in the output; 0: in the prompt only
  std::vector<float> block_maxima_;                     // of the logits, then of the weights
  std::vector<float> block_sums_;
  std::vector<float> values_;          // scratch: the k-th largest, candidates' weights
  std::vector<Candidate> candidates_;  // in order of id
  std::vector<Candidate> ranked_;      // scratch: partly sorted
  std::vector<double> bucket_masses_;  // scratch
  std::vector<uint32_t> masks_;        // empty until asked for
  size_t mask_words_ = 0;              // of a row
  size_t mask_begin_ = 0;              // of the row for the next draw
  bool masked_ = false;
  TokenScorer scorer_;
  TokenScores scores_;
  std::vector<float> unchanged_logits_;
};

// Philox 4x32 with 10 rounds (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3").
std::array<uint32_t, 4> philox_4x32_10(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key);

}  // namespace redoubt
