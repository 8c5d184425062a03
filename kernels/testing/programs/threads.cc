// A program to run under ThreadSanitizer: pools that come, run and go, and steps of a model on several
// threads, some of which fail. Ends with status 1 where a thread passes a barrier early or a result depends
// on threads.
//
//   redoubt_threads MODEL_FOLDER
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <memory>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "machine/thread_pool.h"
#include "model/kv_page.h"
#include "sampling/prompt_reader.h"
#include "sampling/sampler.h"
#include "step/model.h"

namespace redoubt {
namespace {

// Longer than a thread stays awake in a barrier or between runs, so that it sleeps.
constexpr useconds_t kAsleepUs = 2000;

void require(bool holds, const char* what) {
  if (!holds) throw std::logic_error(what);
}

// Every thread writes a plain number of its own, and after a barrier reads all of them.
void run_with_barriers(ThreadPool& pool, int runs) {
  constexpr int kBarriers = 4;
  const int threads = pool.threads();
  std::vector<int> numbers(static_cast<size_t>(threads));
  std::vector<char> early(numbers.size());
  const std::vector<uint8_t> weights(64 << 10);
  for (int run = 0; run < runs; ++run) {
    if (run % 32 == 1) usleep(kAsleepUs);
    pool.run([&](int thread) {
      for (int round = 0; round < kBarriers; ++round) {
        if (run % 32 == 2 && round == thread % kBarriers) usleep(kAsleepUs);
        numbers[size_t(thread)] = run * kBarriers + round;
        pool.barrier({.begin = weights.data(), .bytes = weights.size()});
        for (const int number : numbers) early[size_t(thread)] |= number != run * kBarriers + round;
        pool.barrier();
      }
    });
    for (const int number : numbers) require(number == run * kBarriers + kBarriers - 1, "a run ended early");
    for (const char one : early) require(one == 0, "a barrier was passed early");
  }
}

void run_pools_at_once() {
  std::vector<std::thread> callers;
  for (int threads : {2, 3, 4}) {
    callers.emplace_back([threads] {
      ThreadPool pool(threads, {});
      run_with_barriers(pool, 100);
    });
  }
  for (std::thread& caller : callers) caller.join();
}

// Callers that take turns, as Python's threads do.
void run_from_several_threads() {
  ThreadPool pool(3, {});
  for (int i = 0; i < 20; ++i) std::thread([&] { run_with_barriers(pool, 5); }).join();
}

void make_and_end_pools() {
  for (int i = 0; i < 100; ++i) ThreadPool pool(1 + i % 4, {});
  for (int i = 0; i < 20; ++i) {
    bool refused = false;
    try {
      ThreadPool pool(3, {0, 0, 1023});
    } catch (const std::system_error&) {
      refused = true;
    }
    require(refused, "a CPU that is not there was taken");
  }
}

// A reader of logits that fails at one row, on whichever thread has it.
class FailingReader final : public PromptReader {
 public:
  explicit FailingReader(int32_t vocab_size) : vocab_size_(vocab_size) {}
  int32_t rows_wanted(int32_t, int32_t queries) const override { return queries; }
  bool reads_logits() const override { return true; }
  int32_t row_size() const override { return vocab_size_; }
  void read(int32_t, float*, TokenScorer&) override { throw std::runtime_error("as planned"); }

 private:
  int32_t vocab_size_;
};

constexpr int32_t kSequences = 3, kPromptTokens = 40, kDecodeSteps = 24, kPagesPerSequence = 4;
constexpr int32_t kSparePage = kSequences * kPagesPerSequence;  // two that no sequence has

// Sequences of one model: a prompt each, then a token a step.
class Sequences {
 public:
  Sequences(const std::string& folder, int threads, WeightMemory memory)
      : model_({.folder = folder,
                .threads = threads,
                .cpus = {},
                .nodes = {},
                .weight_memory = memory,
                .kv_pages = kSparePage + 2,
                .state_pages = kSparePage,
                .max_sequences = kSequences,
                .max_step_tokens = kSequences * kPromptTokens,
                .max_context_tokens = kPagesPerSequence * 32}) {
    const int32_t entries = model_.page_groups().count() * kSparePage;
    for (int32_t i = 0; i < entries; ++i) model_.page_table()[i] = i % kSparePage;
    for (int32_t s = 0; s < kSequences; ++s) {
      samplers_.push_back(
          std::make_unique<Sampler>(SamplingOptions{.logit_bias = {}, .seed = uint64_t(s), .end_tokens = {}},
                                    model_.config().vocab_size, std::vector<int32_t>{}));
    }
  }

  Model& model() { return model_; }

  // What is sampled in all steps.
  std::vector<int32_t> run(bool with_failures) {
    std::vector<int32_t> prompt(kPromptTokens), all;
    for (int32_t i = 0; i < kPromptTokens; ++i) prompt[size_t(i)] = i * 7 % model_.config().vocab_size;
    std::vector<int32_t> last(kSequences);
    for (int step = 0; step <= kDecodeSteps; ++step) {
      std::vector<int32_t> tokens;
      for (int32_t s = 0; s < kSequences; ++s) {
        if (step == 0) tokens.insert(tokens.end(), prompt.begin(), prompt.end());
        if (step != 0) tokens.push_back(last[size_t(s)]);
      }
      if (with_failures) require_failure(step, tokens);
      last = run_step(step, tokens, nullptr);
      all.insert(all.end(), last.begin(), last.end());
    }
    return all;
  }

 private:
  void require_failure(int step, const std::vector<int32_t>& tokens) {
    FailingReader reader(model_.config().vocab_size);
    try {
      run_step(step, tokens, &reader);
    } catch (const std::runtime_error& error) {
      require(std::string(error.what()) == "as planned", error.what());
      return;
    }
    throw std::logic_error("a step that must fail did not");
  }

  std::vector<int32_t> run_step(int step, const std::vector<int32_t>& tokens, PromptReader* reader) {
    const int32_t queries = int32_t(tokens.size()) / kSequences;
    const int32_t context = step == 0 ? 0 : kPromptTokens + step - 1;
    std::vector<int32_t> positions, slots, lengths(kSequences, queries), contexts(kSequences, context);
    for (int32_t s = 0; s < kSequences; ++s) {
      slots.push_back(s);
      for (int32_t i = 0; i < queries; ++i) positions.push_back(context + i);
    }
    std::vector<Sampler*> samplers(kSequences);
    std::vector<PromptReader*> readers(kSequences, reader);
    if (reader == nullptr) {
      for (size_t s = 0; s < samplers.size(); ++s) samplers[s] = samplers_[s].get();
    }
    std::vector<int32_t> sampled(kSequences, -1);
    model_.run({.tokens = int32_t(tokens.size()),
                .sequences = kSequences,
                .token_ids = tokens.data(),
                .positions = positions.data(),
                .slots = slots.data(),
                .query_lengths = lengths.data(),
                .context_lengths = contexts.data(),
                .prompts = step == 0 ? kSequences : 0},
               {.samplers = samplers.data(), .sampled = sampled.data(), .readers = readers.data()});
    return sampled;
  }

  Model model_;
  std::vector<std::unique_ptr<Sampler>> samplers_;
};

// Copies a page beside steps, from and to places that no step uses.
class PageCopier {
 public:
  explicit PageCopier(Sequences& sequences)
      : cache_(sequences.model().kv_cache()), thread_([this] { copy(); }) {}
  ~PageCopier() {
    ended_ = true;
    thread_.join();
  }

 private:
  void copy() {
    std::vector<std::byte> page(gathered_page_bytes(cache_));
    while (!ended_) {
      gather_page(cache_, kSparePage, page.data(), page.size());
      scatter_page(cache_, kSparePage + 1, page.data(), page.size());
    }
  }

  KvCache& cache_;
  std::atomic<bool> ended_ = false;
  std::thread thread_;
};

void run_steps(const std::string& folder) {
  const auto expected = Sequences(folder, 1, WeightMemory::kMapped).run(false);
  for (const int threads : {2, 3, 4}) {
    for (const bool with_failures : {false, true}) {
      require(Sequences(folder, threads, WeightMemory::kMapped).run(with_failures) == expected,
              "what is sampled depends on the threads");
    }
  }
  Sequences(folder, 3, WeightMemory::kHugePages).run(false);
  Sequences copied(folder, 2, WeightMemory::kMapped);
  const PageCopier copier(copied);
  require(copied.run(false) == expected, "what is sampled depends on pages that are copied meanwhile");
}

void run_all(const std::string& folder) {
  for (const int threads : {1, 2, 3, 5}) {
    ThreadPool pool(threads, {});
    run_with_barriers(pool, 300);
  }
  run_pools_at_once();
  run_from_several_threads();
  make_and_end_pools();
  run_steps(folder);
}

}  // namespace
}  // namespace redoubt

int main(int count, char** arguments) {
  if (count != 2) {
    std::fprintf(stderr, "usage: redoubt_threads MODEL_FOLDER\n");
    return 2;
  }
  try {
    redoubt::run_all(arguments[1]);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "redoubt_threads: %s\n", error.what());
    return 1;
  }
  return 0;
}
