// Chooses tokens (contract: sampling/sampler.h). Nothing here sorts a vocabulary: candidates are found
// through the maxima of blocks, and the cut of top-p by selection. Knows no text, no model and no request.
#include "sampling/sampler.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <stdexcept>
#include <string>

#include "simd/numbers.h"

namespace redoubt {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
// Weights are relative to the largest, which is 1. For top-p, candidates are gathered down to this weight
// first. That is usually enough; if not, all of them are gathered.
constexpr float kFirstThreshold = 0x1p-10f;
// Weights of one sixteenth of an octave share a bucket.
constexpr int kBucketShift = 19;
constexpr uint32_t kBuckets = (std::bit_cast<uint32_t>(1.0f) >> kBucketShift) + 1;
uint32_t bucket_of(float weight) {
  return std::min(std::bit_cast<uint32_t>(weight) >> kBucketShift, kBuckets - 1);
}
// Below this many candidates sorting is as cheap as selecting.
constexpr size_t kSortSize = 64;

void require(bool valid, const char* name, const char* range, double value) {
  if (!valid) {
    throw std::invalid_argument(std::string(name) + " must be " + range + ", not " + std::to_string(value));
  }
}

void require_token(int32_t token, int32_t vocab_size, const char* where) {
  if (token < 0 || token >= vocab_size) {
    throw std::invalid_argument(std::string(where) + ": token " + std::to_string(token) +
                                " is outside the vocabulary of " + std::to_string(vocab_size));
  }
}

void validate(const SamplingOptions& options, int32_t vocab_size) {
  require(vocab_size > 0, "vocab_size", "positive", vocab_size);
  require(std::isfinite(options.temperature) && options.temperature >= 0, "temperature",
          "finite and at least 0", options.temperature);
  require(options.top_k >= 0, "top_k", "at least 0 (0: off)", options.top_k);
  require(options.top_p > 0 && options.top_p <= 1, "top_p", "above 0 and at most 1", options.top_p);
  require(options.min_p >= 0 && options.min_p < 1, "min_p", "at least 0 and below 1", options.min_p);
  require(std::isfinite(options.repetition_penalty) && options.repetition_penalty > 0, "repetition_penalty",
          "finite and above 0", options.repetition_penalty);
  require(std::isfinite(options.presence_penalty), "presence_penalty", "finite", options.presence_penalty);
  require(std::isfinite(options.frequency_penalty), "frequency_penalty", "finite", options.frequency_penalty);
  require(options.min_tokens >= 0, "min_tokens", "at least 0", options.min_tokens);
  require(options.logprobs >= -1 && options.logprobs <= std::min(vocab_size, kMostTopTokens), "logprobs",
          "at least 0 (-1: off), and at most 1024 and the vocabulary", options.logprobs);
  require(options.candidates >= 0 && options.candidates <= std::min(vocab_size, kMostTopTokens), "candidates",
          "at least 0 (0: off), and at most 1024 and the vocabulary", options.candidates);
  require(options.candidates == 0 || options.logprobs < 0, "logprobs", "-1 with candidates",
          options.logprobs);
  for (int32_t token : options.end_tokens) require_token(token, vocab_size, "end_tokens");
  for (const auto& [token, bias] : options.logit_bias) {
    require_token(token, vocab_size, "logit_bias");
    require(!std::isnan(bias) && bias < kInfinity, "logit_bias", "a number below infinity", bias);
  }
}

template <class Candidates>
double total_weight(const Candidates& candidates) {
  double total = 0;
  for (const auto& candidate : candidates) total += candidate.weight;
  return total;
}

size_t blocks_of(int32_t n) { return (size_t(n) + kLogitBlock - 1) / kLogitBlock; }

}  // namespace

std::array<uint32_t, 4> philox_4x32_10(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = uint64_t(0xD2511F53) * counter[0];
    const uint64_t product1 = uint64_t(0xCD9E8D57) * counter[2];
    counter = {uint32_t(product1 >> 32) ^ counter[1] ^ key[0], uint32_t(product1),
               uint32_t(product0 >> 32) ^ counter[3] ^ key[1], uint32_t(product0)};
    key[0] += 0x9E3779B9;
    key[1] += 0xBB67AE85;
  }
  return counter;
}

Sampler::Sampler(SamplingOptions options, int32_t vocab_size, const std::vector<int32_t>& prompt)
    : options_(std::move(options)),
      vocab_size_(vocab_size),
      kernels_(&kernel_table(default_tier())),
      scorer_(*kernels_) {
  validate(options_, vocab_size);
  for (int32_t token : prompt) require_token(token, vocab_size, "prompt");
  if (options_.repetition_penalty != 1.0f) {
    for (int32_t token : prompt) output_counts_.emplace(token, 0);
  }
  scores_.top = std::max(options_.logprobs, 0);
}

int32_t Sampler::sample(float* logits) {
  if (options_.candidates > 0) return keep_candidates(logits);
  if (options_.logprobs >= 0) unchanged_logits_.assign(logits, logits + vocab_size_);
  apply_penalties(logits);
  bar_tokens(logits);
  if (mask_begin_ + mask_words_ < masks_.size()) mask_begin_ += mask_words_;
  const int32_t token = choose(logits);
  if (options_.logprobs >= 0) keep_scores_of(token);
  ++drawn_;
  if (has_penalties()) ++output_counts_[token];
  return token;
}

int32_t Sampler::keep_candidates(float* logits) {
  const size_t count = size_t(options_.candidates);
  scores_ = {.top = options_.candidates,
             .logprobs = {},
             .top_tokens = std::vector<int32_t>(count),
             .top_logprobs = std::vector<float>(count)};
  if (options_.penalize_logprobs) scorer_.log_softmax(logits, vocab_size_);
  apply_penalties(logits);
  bar_tokens(logits);
  int32_t* tokens = scores_.top_tokens.data();
  float* logprobs = scores_.top_logprobs.data();
  if (options_.penalize_logprobs) {
    scorer_.top(logits, vocab_size_, options_.candidates, tokens, logprobs);
  } else {
    scorer_.score(logits, vocab_size_, 0, options_.candidates, tokens, logprobs);
  }
  scores_.logprobs.push_back(logprobs[0]);
  return tokens[0];
}

void Sampler::remember(const std::vector<int32_t>& tokens) {
  for (const int32_t token : tokens) require_token(token, vocab_size_, "remember");
  drawn_ += tokens.size();
  if (!has_penalties()) return;
  for (const int32_t token : tokens) ++output_counts_[token];
}

Sampler Sampler::after(int32_t token) const {
  require_token(token, vocab_size_, "after");
  Sampler next(options_, vocab_size_, {});
  next.drawn_ = drawn_ + 1;
  next.output_counts_ = output_counts_;
  next.masks_ = masks_;
  next.mask_words_ = mask_words_;
  next.mask_begin_ = mask_begin_;
  next.masked_ = masked_;
  if (has_penalties()) ++next.output_counts_[token];
  return next;
}

bool Sampler::has_penalties() const {
  return options_.repetition_penalty != 1.0f || options_.presence_penalty != 0.0f ||
         options_.frequency_penalty != 0.0f;
}

void Sampler::apply_penalties(float* logits) const {
  for (const auto& [token, times] : output_counts_) {
    float& logit = logits[token];
    logit = logit > 0 ? logit / options_.repetition_penalty : logit * options_.repetition_penalty;
    if (times > 0) logit -= options_.presence_penalty + options_.frequency_penalty * float(times);
  }
  for (const auto& [token, bias] : options_.logit_bias) logits[token] += bias;
}

// Bars what the mask forbids, and end tokens before min_tokens. Words of the mask that allow all are skipped.
void Sampler::bar_tokens(float* logits) const {
  if (masked_) {
    const uint32_t* const mask = masks_.data() + mask_begin_;
    for (size_t word = 0; word < mask_words_; ++word) {
      if (mask[word] == ~uint32_t{0}) continue;
      const int32_t begin = int32_t(word) * 32, end = std::min(vocab_size_, begin + 32);
      for (int32_t token = begin; token < end; ++token) {
        if ((mask[word] >> (token - begin) & 1) == 0) logits[token] = -kInfinity;
      }
    }
  }
  if (drawn_ < uint64_t(options_.min_tokens)) {
    for (const int32_t token : options_.end_tokens) logits[token] = -kInfinity;
  }
}

void Sampler::keep_scores_of(int32_t token) {
  const size_t top = size_t(scores_.top), count = scores_.logprobs.size();
  scores_.top_tokens.resize((count + 1) * top);
  scores_.top_logprobs.resize((count + 1) * top);
  scores_.logprobs.push_back(scorer_.score(unchanged_logits_.data(), vocab_size_, token, scores_.top,
                                           scores_.top_tokens.data() + count * top,
                                           scores_.top_logprobs.data() + count * top));
}

std::vector<uint32_t>& Sampler::masks(int32_t rows) {
  mask_words_ = (size_t(vocab_size_) + 31) / 32;
  mask_begin_ = 0;
  masks_.resize(size_t(rows) * mask_words_, ~uint32_t{0});
  return masks_;
}

TokenScores Sampler::take_scores() {
  TokenScores taken = std::move(scores_);
  scores_ = {.top = taken.top, .logprobs = {}, .top_tokens = {}, .top_logprobs = {}};
  return taken;
}

int32_t Sampler::choose(float* logits) {
  block_maxima_.resize(blocks_of(vocab_size_));
  kernels_->block_maxima(logits, vocab_size_, block_maxima_.data());
  const float max = *std::max_element(block_maxima_.begin(), block_maxima_.end());
  if (max == -kInfinity) return 0;
  if (max == kInfinity || options_.temperature == 0.0f) return first_equal(logits, max);

  double total;
  if (options_.top_k > 0 && options_.top_k < vocab_size_) {
    keep_top_k(logits, max);
    total = total_weight(candidates_);
  } else {
    total = weigh(logits, max, vocab_size_);
    if (options_.top_p == 1.0f && options_.min_p == 0.0f) return draw_from_all(logits, total);
    weigh(block_maxima_.data(), max, int32_t(block_maxima_.size()));
    const double mass = options_.top_p < 1.0f ? options_.top_p * total : 0.0;
    const float threshold = mass > 0 ? std::max(options_.min_p, kFirstThreshold) : options_.min_p;
    gather(logits, threshold);
    if (threshold > options_.min_p && total_weight(candidates_) < mass) gather(logits, options_.min_p);
  }
  Candidate cut{options_.min_p, std::numeric_limits<int32_t>::max()};
  if (options_.top_p < 1.0f) {
    const Candidate last = top_p_cut(options_.top_p * total);
    if (last.weight >= options_.min_p) cut = last;
  }
  return draw_from_candidates(cut);
}

int32_t Sampler::first_equal(const float* logits, float value) const {
  const auto block = std::find(block_maxima_.begin(), block_maxima_.end(), value) - block_maxima_.begin();
  int32_t token = int32_t(block) * kLogitBlock;
  while (logits[token] != value) ++token;
  return token;
}

// Turns n logits into weights relative to the largest logit, and returns their sum.
double Sampler::weigh(float* logits, float max, int32_t n) {
  // Bounded, so that 0 * scale is 0 at the smallest temperature too.
  const float scale = std::min(kLog2eHigh / options_.temperature, 1e30f);
  block_sums_.resize(blocks_of(n));
  kernels_->softmax_weights(logits, n, max, scale, block_sums_.data());
  double total = 0;
  for (float sum : block_sums_) total += sum;
  return total;
}

int32_t Sampler::draw_from_all(const float* weights, double total) {
  double rest = uniform() * total;
  size_t block = 0, last = 0;
  for (; block < block_sums_.size(); ++block) {
    if (block_sums_[block] > 0) last = block;
    if (rest < block_sums_[block]) break;
    rest -= block_sums_[block];
  }
  // Rounding may leave a rest after the last block, or after a block's last token. Then the last possible
  // token is drawn.
  const int32_t begin = int32_t(last) * kLogitBlock, end = std::min(vocab_size_, begin + kLogitBlock);
  int32_t chosen = begin;
  for (int32_t token = begin; token < end; ++token) {
    if (weights[token] == 0) continue;
    chosen = token;
    if (rest < weights[token] && block < block_sums_.size()) break;
    rest -= weights[token];
  }
  return chosen;
}

// Of the candidates, those at or before `cut` in the order of falling weight, then id.
int32_t Sampler::draw_from_candidates(Candidate cut) {
  size_t count = 0;
  for (const Candidate candidate : candidates_) {
    candidates_[count] = candidate;
    count +=
        candidate.weight > cut.weight || (candidate.weight == cut.weight && candidate.token <= cut.token);
  }
  candidates_.resize(count);
  double rest = uniform() * total_weight(candidates_);
  int32_t chosen = 0;
  for (const Candidate& candidate : candidates_) {
    if (candidate.weight > 0) chosen = candidate.token;
    if (rest < candidate.weight) break;
    rest -= candidate.weight;
  }
  return chosen;
}

// Makes the candidates of all logits >= the k-th largest. The k-th largest maximum of a block can't be above
// it, so only blocks that reach that one are read again.
void Sampler::keep_top_k(const float* logits, float max) {
  const size_t k = size_t(options_.top_k);
  float bound = -kInfinity;
  if (k <= block_maxima_.size()) {
    values_ = block_maxima_;
    std::nth_element(values_.begin(), values_.begin() + k - 1, values_.end(), std::greater<>());
    bound = values_[k - 1];
  }
  gather(logits, bound);
  values_.clear();
  for (const Candidate& candidate : candidates_) values_.push_back(candidate.weight);
  if (k < values_.size()) {
    std::nth_element(values_.begin(), values_.begin() + k - 1, values_.end(), std::greater<>());
    const float kth = values_[k - 1];
    std::erase_if(candidates_, [kth](const Candidate& candidate) { return candidate.weight < kth; });
  }
  values_.clear();
  for (const Candidate& candidate : candidates_) values_.push_back(candidate.weight);
  weigh(values_.data(), max, int32_t(values_.size()));
  for (size_t i = 0; i < candidates_.size(); ++i) candidates_[i].weight = values_[i];
}

// Makes the candidates of all tokens of at least this value; NaN never is. There is no branch per token,
// because it could not be predicted.
void Sampler::gather(const float* values, float at_least) {
  size_t count = 0;
  for (size_t block = 0; block < block_maxima_.size(); ++block) {
    if (block_maxima_[block] < at_least) continue;
    const int32_t begin = int32_t(block) * kLogitBlock, end = std::min(vocab_size_, begin + kLogitBlock);
    if (candidates_.size() < count + kLogitBlock) candidates_.resize(2 * count + kLogitBlock);
    for (int32_t token = begin; token < end; ++token) {
      candidates_[count] = {values[token], token};
      count += values[token] >= at_least;
    }
  }
  candidates_.resize(count);
}

// The last candidate, in the order of falling weight, then id, that is needed to reach `mass`. Candidates are
// counted in buckets of similar weights (positive floats ascend as their bits do); only the bucket in which
// the mass is reached is sorted.
Sampler::Candidate Sampler::top_p_cut(double mass) {
  bucket_masses_.assign(kBuckets, 0.0);
  for (const Candidate& candidate : candidates_)
    bucket_masses_[bucket_of(candidate.weight)] += candidate.weight;
  uint32_t bucket = kBuckets - 1;
  double sum = 0;  // of all candidates before ranked_[begin]
  uint32_t lowest = 0;
  while (lowest + 1 < kBuckets && bucket_masses_[lowest] == 0) ++lowest;
  while (bucket > lowest && sum + bucket_masses_[bucket] < mass) sum += bucket_masses_[bucket--];

  ranked_.resize(candidates_.size());
  size_t begin = 0, end = 0;
  for (const Candidate candidate : candidates_) {
    ranked_[end] = candidate;
    end += bucket_of(candidate.weight) == bucket;
  }
  const auto before = [](const Candidate& a, const Candidate& b) {
    return a.weight > b.weight || (a.weight == b.weight && a.token < b.token);
  };
  while (end - begin > kSortSize) {
    const size_t middle = (begin + end) / 2;
    std::nth_element(ranked_.begin() + begin, ranked_.begin() + middle, ranked_.begin() + end, before);
    double half = 0;
    for (size_t i = begin; i < middle; ++i) half += ranked_[i].weight;
    if (sum + half >= mass) {
      end = middle;
    } else {
      sum += half;
      begin = middle;
    }
  }
  std::sort(ranked_.begin() + begin, ranked_.begin() + end, before);
  while (begin + 1 < end && sum + ranked_[begin].weight < mass) sum += ranked_[begin++].weight;
  return ranked_[begin];
}

double Sampler::uniform() {
  const auto bits = philox_4x32_10({uint32_t(drawn_), uint32_t(drawn_ >> 32), 0, 0},
                                   {uint32_t(options_.seed), uint32_t(options_.seed >> 32)});
  return double((uint64_t(bits[0]) << 32 | bits[1]) >> 11) * 0x1p-53;
}

}  // namespace redoubt
