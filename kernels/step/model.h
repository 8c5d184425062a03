// A packed model, ready to run: configuration, weights, KV pages, threads and working memory. Validates
// batches. step/decoder.h has the order in which a step is computed.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "contract/kernel_table.h"
#include "machine/aligned_memory.h"
#include "machine/thread_pool.h"
#include "model/config.h"
#include "model/kv_cache.h"
#include "model/rope_angles.h"
#include "model/state_pages.h"
#include "model/weights.h"
#include "step/batch.h"
#include "step/predictor.h"
#include "weights/node_slices.h"
#include "weights/packed_file.h"

namespace redoubt {

struct Workspace;

// Reads the description from a packed model's folder, or from its files. Throws PackedFileError,
// std::system_error and what `files` throw.
ModelConfig model_config_of(const std::string& folder);
ModelConfig model_config_of(const ModelFiles& files);

struct ModelOptions;
// With the predictor that is used, if any. Throws std::invalid_argument naming the option.
ModelConfig with_predictor(ModelConfig config, bool predicts, const std::string& head);
// The page groups of a model's layers with these options.
PageGroups page_groups_of(const ModelConfig& config, const ModelOptions& options);

// Throws std::invalid_argument naming the option that the tier does not have.
Bf16Uses bf16_uses(ComputeType compute_type, PromptComputeType prompts, Tier tier);

struct ModelOptions {
  std::string folder;  // unless the model's files come from elsewhere
  int32_t threads = 1;
  std::vector<int> cpus;     // where to pin the threads; empty: nowhere
  std::vector<int> nodes;    // each thread's NUMA node (weights/node_slices.h); empty: one
  bool bind_weights = true;  // to their nodes, where nodes are given and the weights copied
  ComputeType compute_type = ComputeType::kInt8;
  PromptComputeType prompt_compute_type = PromptComputeType::kSame;
  KvType kv_type = KvType::kInt16;
  WeightMemory weight_memory = WeightMemory::kAuto;
  int32_t kv_pages = 0;
  int32_t state_pages = 0;  // of a model with states
  int32_t max_sequences = 0;
  int32_t max_step_tokens = 0;
  int32_t max_context_tokens = 0;
  // Layers with sliding windows have page tables of their own, and pages only for their windows.
  bool page_groups = false;
  // Whether the layer of multi-token prediction is used, which the model must have.
  bool predicts = false;
  // The folder of an EAGLE-3 head, which predicts instead; empty: there is none.
  std::string head = {};
};

class Model {
 public:
  // files: instead of the folder's; used until the model is loaded. Throws PackedFileError,
  // std::invalid_argument naming the option, std::system_error, std::bad_alloc, and what `files` throw.
  explicit Model(const ModelOptions& options, const ModelFiles* files = nullptr);
  ~Model();
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  const ModelConfig& config() const { return config_; }
  const ModelOptions& options() const { return options_; }
  Tier tier() const { return kernels_.tier; }
  // The tier whose kernels write and read keys and values: kScalar where heads don't fill a vector.
  Tier attention_tier() const;
  bool has_bf16_prompts() const { return bf16_.prompts; }
  int32_t pages_per_sequence() const { return pages_per_sequence_; }
  // [groups][max_sequences][pages_per_sequence]: entry i of a row is the page of kPageTokens tokens from i *
  // kPageTokens on. Entries before those that a step's tokens see are not read. The states' group has numbers
  // of state_pages(), or kNoPage where the state is not needed later: allowed for a page that a step computes
  // completely, but not for the page that holds its last token, nor for the one before that if it is not
  // full. An encoder's sequences get their pages by themselves.
  int32_t* page_table() { return page_table_.data(); }
  const PageGroups& page_groups() const { return kv_cache_.groups(); }
  KvCache& kv_cache() { return kv_cache_; }
  bool has_states() const { return config_.keeps_states(); }
  StatePages& state_pages() { return state_pages_; }
  size_t weights_bytes() const { return file_.bytes() + (head_file_ ? head_file_->bytes() : 0); }
  WeightMemory weight_memory() const { return file_.memory(); }
  size_t activation_bytes() const;
  const StepProfile& profile() const { return profile_; }
  // Records where the time of steps goes, from zero on. Without it a step pays nothing for that.
  void start_profile() {
    profile_ = {};
    is_profiled_ = true;
  }
  void stop_profile() { is_profiled_ = false; }

  // Drafts the next `depth` tokens of each sequence of a batch, whose one token is the sequence's last, which
  // no step has computed, or the last draft of the call before. tokens, chances: [sequences][depth]; -1 and 0
  // where the hidden state of the token before is not known: the slot's last step, or last draft since then,
  // must have computed it. samplers: [sequences], or null; each draws a sequence's drafts, and null takes the
  // likeliest. Changes nothing that a step reads. Throws std::invalid_argument as `run`.
  void draft(const Batch& given, int32_t depth, Sampler* const* samplers, int32_t* tokens, float* chances);

  // Forgets what drafts of the slot's sequence need, which leaves the slot: its hidden states and its page
  // for drafts become zeros. Nothing without a predictor. Throws std::invalid_argument for a slot that is not
  // there.
  void forget_slot(int32_t slot);

  // As copy_page_turned (model/kv_turn.h).
  void copy_page_turned(int32_t source, int32_t target, int32_t positions);
  bool has_relative_positions() const;

  // Gives the memory of keys, values, states, activations and mapped weights back to the system, until a step
  // needs it again. What pages held is lost.
  void release_memory();

  // Runs a batch and fills `outputs`. The batch's arrays and the page table are copied first, so that the
  // caller may change them meanwhile. Throws std::invalid_argument naming the array that does not fit, and
  // what a sampler or a reader threw.
  void run(const Batch& given, const StepOutputs& outputs);

 private:
  // Where a step with this batch records its time; null if nobody wants to know.
  std::array<StageTicks, kStages>* profile_of(const Batch& batch);
  size_t page_table_entries() const;
  std::unique_ptr<Workspace> new_workspace() const;
  void check_sizes(const Batch& batch) const;
  void check_tokens(const Batch& batch) const;
  void check_sequences(const Batch& batch);
  Batch with_layers(Batch batch) const;
  void copy_page_table(const Batch& batch);
  void number_pages(const Batch& batch);
  void copy_page_table(const Batch& batch, int32_t group, int32_t sequence);
  const LastHidden* hidden_of(int32_t slot, int32_t context) const;
  int32_t* predictor_pages(int32_t slot) { return page_table_.data() + predictor_row(slot); }
  int64_t predictor_row(int32_t sequence) const;
  void copy_draft_pages(int32_t slot, int32_t context, int32_t sequence);
  void check_part(const Batch& batch) const;
  // The batch's rows that it says, and after the last ones of the last layer all rows' final norm.
  void run_rows(const Batch& batch, const StepOutputs& outputs);
  // first_sequence: of the batch's page tables.
  void run(const Batch& batch, const StepOutputs& outputs, const DraftOutputs* drafts,
           int32_t first_sequence = 0);
  void copy_state_pages(const Batch& batch);
  void copy_state_pages(const Batch& batch, int32_t sequence);

  ModelOptions options_;
  ModelConfig config_;
  KernelTable kernels_;
  Bf16Uses bf16_;
  ThreadPool pool_;
  ThreadNodes nodes_;
  PackedFile file_;
  std::unique_ptr<PackedFile> head_file_;  // of an EAGLE-3 head, or null
  std::vector<ModelWeights> weights_;      // by node
  std::vector<RopeAngles> rope_angles_;
  KvCache kv_cache_;
  StatePages state_pages_;
  int32_t pages_per_sequence_;
  AlignedMemory<int32_t> page_table_;  // the caller's
  // Detects two sequences that write to one state page: for each page, the last step that uses it, times 2,
  // plus 1 if it writes.
  std::vector<int64_t> state_page_uses_;
  int64_t steps_ = 0;
  AlignedMemory<int32_t> batch_page_table_;  // the running batch's rows of it, copied and checked
  BatchCopy batch_;
  std::vector<bool> slot_taken_;
  std::unique_ptr<Workspace> workspace_;
  LastHidden last_hidden_, draft_hidden_;  // empty without a predictor
  StepProfile profile_;
  bool is_profiled_ = false;
};

}  // namespace redoubt
