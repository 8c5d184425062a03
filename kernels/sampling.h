// From one row of logits to one token: penalties, bias, temperature, top-k, top-p, min-p, and a seeded draw.
//
// A Sampler belongs to one request and remembers the tokens it has seen. The draw is counter-based (Philox 4x32-10,
// Salmon et al. 2011) on (seed, number of tokens drawn so far): the same seed gives the same text whatever else runs.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <utility>
#include <vector>

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
};

class Sampler {
 public:
  // Throws std::invalid_argument naming the option that is out of range, or the token outside the vocabulary.
  Sampler(SamplingOptions options, int32_t vocab_size, const std::vector<int32_t>& prompt);
  // Chooses a token and remembers it. Order: repetition, presence and frequency penalties, bias, temperature, top-k,
  // top-p, min-p, draw. `logits` [vocab_size] is used as working space. NaN logits never win.
  int32_t sample(float* logits);

 private:
  SamplingOptions options_;
  int32_t vocab_size_;
  uint64_t drawn_ = 0;
  std::unordered_map<int32_t, int32_t> output_counts_;  // token -> times in the output; 0: in the prompt only
  std::vector<std::pair<float, int32_t>> candidates_;
};

}  // namespace redoubt
