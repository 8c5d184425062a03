// A packed model, ready to run: configuration, weights, KV pages, threads and working memory. Checks
// what it is given to run. How a step is computed is in step/forward.h.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "contract/kernel_table.h"
#include "machine/aligned_memory.h"
#include "machine/thread_pool.h"
#include "model/config.h"
#include "model/kv_cache.h"
#include "model/weights.h"
#include "weights/node_slices.h"
#include "weights/packed_file.h"

namespace redoubt {

class PromptReader;
class Sampler;
struct Workspace;

// Activations in products with integer weights. kAuto is kBf16 where the tier is fast with it, else kInt8.
enum class ComputeType : uint8_t { kAuto, kInt8, kBf16, kFp32 };
// Of the products of prompts: kBf16 where answers may have kInt8. kAuto is kBf16 where the tier is fast with
// it.
enum class PromptComputeType : uint8_t { kSame, kBf16, kAuto };

// Which products are of bf16 numbers.
struct Bf16Uses {
  bool prompts = false;  // attention too
  bool all = false;
};
// Throws std::invalid_argument naming the option that the tier does not have.
Bf16Uses bf16_uses(ComputeType compute_type, PromptComputeType prompts, Tier tier);

struct ModelOptions {
  std::string folder;
  int32_t threads = 1;
  std::vector<int> cpus;     // where to pin the threads; empty: nowhere
  std::vector<int> nodes;    // each thread's NUMA node (weights/node_slices.h); empty: one
  bool bind_weights = true;  // to their nodes, where nodes are given and the weights copied
  ComputeType compute_type = ComputeType::kInt8;
  PromptComputeType prompt_compute_type = PromptComputeType::kSame;
  KvType kv_type = KvType::kInt16;
  WeightMemory weight_memory = WeightMemory::kAuto;
  int32_t kv_pages = 0;
  int32_t max_sequences = 0;
  int32_t max_step_tokens = 0;
  int32_t max_context_tokens = 0;
};

// A ragged batch: the sequences' new tokens one after another.
struct Batch {
  int32_t tokens = 0;
  int32_t sequences = 0;
  const int32_t* token_ids = nullptr;        // [tokens]
  const int32_t* positions = nullptr;        // [tokens], for RoPE
  const int32_t* slots = nullptr;            // [sequences], rows of the page table
  const int32_t* query_lengths = nullptr;    // [sequences], new tokens; they add up to `tokens`
  const int32_t* context_lengths = nullptr;  // [sequences], keys before this step
  // [sequences] or null: how many of a sequence's last new tokens are guesses, to be compared with what is
  // sampled from the row before each.
  const int32_t* draft_lengths = nullptr;
  // So many of the last sequences have tokens of their prompt here, those before them of their answer.
  int32_t prompts = 0;

  int32_t answers() const { return sequences - prompts; }
  int32_t drafts(int32_t sequence) const { return draft_lengths == nullptr ? 0 : draft_lengths[sequence]; }
};

// What a step is to return; null where it is not wanted.
struct StepOutputs {
  Sampler* const* samplers = nullptr;  // [sequences], null for a sequence that is not sampled
  // A place per sequence and one more for each of its guesses, in order. A sequence is sampled up to the
  // first token that is not the guess in its place; what comes after, and what is not sampled at all, is -1.
  int32_t* sampled = nullptr;
  PromptReader* const* readers = nullptr;  // [sequences], null for a sequence whose prompt nobody reads
  float* logits = nullptr;                 // [tokens][vocab_size]
  float* hidden_states = nullptr;          // [layers + 2][tokens][hidden_size]
};

// Where a step's time goes, as thread 0 sees it. A stage includes the barrier at its end.
enum class Stage : uint8_t { kEmbed, kQkv, kRope, kAttention, kOutput, kGateUp, kDown, kHead, kSample };
inline constexpr int kStages = 9;
inline constexpr std::array<const char*, kStages> kStageNames = {
    "embed", "qkv", "rope", "attention", "output", "gate_up", "down", "head", "sample"};

struct StepProfile {
  std::array<uint64_t, kStages> stage_ticks{};
  uint64_t barrier_ticks = 0;  // part of the stages' time: waiting for the other threads
};

class Model {
 public:
  // Throws PackedFileError, std::invalid_argument naming the option, std::system_error, std::bad_alloc.
  explicit Model(const ModelOptions& options);
  ~Model();
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  const ModelConfig& config() const { return config_; }
  const ModelOptions& options() const { return options_; }
  Tier tier() const { return kernels_.tier; }
  bool has_bf16_prompts() const { return bf16_.prompts; }
  int32_t pages_per_sequence() const { return pages_per_sequence_; }
  int32_t* page_table() { return page_table_.data(); }
  KvCache& kv_cache() { return kv_cache_; }
  size_t weights_bytes() const { return file_.bytes(); }
  WeightMemory weight_memory() const { return file_.memory(); }
  size_t activation_bytes() const;
  const StepProfile& profile() const { return profile_; }
  void reset_profile() { profile_ = {}; }

  // As copy_page_turned (model/kv_turn.h).
  void copy_page_turned(int32_t source, int32_t target, int32_t positions);
  bool has_relative_positions() const { return rope_angles_.is_relative(); }

  // Runs a batch and returns what `outputs` asks for. Throws std::invalid_argument naming the array that does
  // not fit.
  void run(const Batch& batch, const StepOutputs& outputs);

 private:
  void check_batch(const Batch& batch);
  void copy_page_table(const Batch& batch);

  ModelOptions options_;
  ModelConfig config_;
  KernelTable kernels_;
  Bf16Uses bf16_;
  ThreadPool pool_;
  ThreadNodes nodes_;
  PackedFile file_;
  std::vector<ModelWeights> weights_;  // by node
  RopeAngles rope_angles_;
  KvCache kv_cache_;
  int32_t pages_per_sequence_;
  AlignedMemory<int32_t> page_table_;  // the caller's
  AlignedMemory<int32_t>
      batch_page_table_;  // the checked rows of the running batch: the caller's may change meanwhile
  std::vector<bool> slot_taken_;
  std::unique_ptr<Workspace> workspace_;
  StepProfile profile_;
};

}  // namespace redoubt
