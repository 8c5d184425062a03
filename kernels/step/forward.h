// One step of a Llama-family model (Touvron et al. 2023): every thread of the pool runs the same sequence of
// stages, takes its share of each, and meets the others at barriers. Inputs are already checked. All
// arithmetic is in the kernel table; here is only who computes what, and from where to where.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <initializer_list>
#include <vector>

#include "contract/attention.h"
#include "contract/kernel_table.h"
#include "contract/linear.h"
#include "machine/thread_pool.h"
#include "model/kv_cache.h"
#include "model/rope_angles.h"
#include "sampling/token_scores.h"
#include "step/attention_plan.h"
#include "step/batch.h"
#include "step/workspace.h"
#include "weights/node_slices.h"

namespace redoubt {

struct ForwardContext {
  const ModelConfig& config;
  const std::vector<ModelWeights>& weights;  // by node
  const ThreadNodes& nodes;
  const KernelTable& kernels;
  const RopeAngles& rope_angles;
  const KvCache& kv_cache;
  ComputeType compute_type;
  Bf16Uses bf16;               // granted by the tier
  const int32_t* page_tables;  // [batch's sequences][pages_per_sequence], checked
  int32_t pages_per_sequence;
  ThreadPool& pool;
  Workspace& workspace;
  StepProfile& profile;
};

// How many others' shares a thread looks at when its own is done: cores get their bytes from memory at uneven
// rates.
inline constexpr int kHelpedThreads = 3;

class ForwardPass {
 public:
  // Plans the step and sizes the scratch memory.
  ForwardPass(const ForwardContext& context, const Batch& batch, const StepOutputs& outputs);
  // Runs it on the pool. Rethrows what a sampler threw.
  void run();

 private:
  // How many rows a stage has, and how many of them are answers' (see LayerRows).
  struct RowCounts {
    int32_t all;
    int32_t answers;
  };
  // Rows as linear kernels take them: in fp32; or the first quantized to one term or two, and what is left,
  // prompts' or all, rounded to bf16.
  struct LinearInput {
    bool quantized = false;
    QuantizedRows one_term;  // empty where no user takes one term
    QuantizedRows two_terms;
    Bf16Rows rounded;
    FloatRows floats;
    int32_t quantized_rows = 0;
    int32_t first_row = 0;  // of a part, counted from the whole's

    // One of some parts of about as many rows, of an input that is quantized; `floats` tells their number
    // only. If rows are rounded the first part has all others, and perhaps no rounded ones, and the next
    // perhaps none at all.
    LinearInput part(int index, int parts) const;
  };
  struct Target {
    float* values;
    int64_t stride;
    bool accumulate;
    bool elsewhere = true;  // as in LinearOutput
  };
  // One matrix of a stage, and where its output goes.
  struct Segment {
    const Linear& linear;
    Target target;
  };

  // The rows of activations that a layer works on: each sequence's last query_lengths[s] tokens. First those
  // of answers, then those of prompts: with bf16.prompts they are computed in two ways.
  struct LayerRows {
    Batch batch;  // `tokens` rows; positions and slots are not used
    int32_t answer_rows = 0;
    std::vector<int32_t> first_row;        // of each sequence
    std::vector<int32_t> query_lengths;    // where the batch's point, unless they are the caller's
    std::vector<int32_t> context_lengths;  // likewise
    AttentionPlan attention;

    RowCounts counts() const { return {batch.tokens, answer_rows}; }
  };

  // A row of logits that is sampled or read.
  struct HeadRow {
    int32_t sequence;
    int32_t wanted_row;
    int32_t token_index;  // within its sequence, where a reader gets it; -1: it is sampled
    int32_t guesses;      // how many of the sequence's guesses it comes after, if it is sampled
  };
  // Rows of hidden states that a reader gets.
  struct HiddenRows {
    int32_t sequence;
    int32_t first_wanted_row;
    int32_t first_token_index;  // within its sequence
    int32_t count;
  };

  void list_rows();
  int32_t want_rows(int32_t sequence, int32_t first_token);
  void sample_row(const HeadRow& row, float* logits);
  void plan_attention_of(LayerRows& rows);

  void run_thread(int thread);
  void run_layer(int thread, int layer);
  void run_last_layer(int thread, int layer);
  void attend_and_finish_layer(int thread, int layer, const LayerRows& rows);
  void embed(int thread);
  void project_qkv(int thread, int layer);
  void project_keys_values(int thread, int layer);
  void keep_wanted_rows(int thread);
  void project_queries(int thread, int layer);
  // Rotates `heads` of each row (its query heads, then its key/value heads), and stores keys and values.
  void rope_and_store(int thread, int layer, const LayerRows& rows, Range heads);
  void rotate(float* head, const float* norm, const float* angles);
  void attend(int thread, int layer, const LayerRows& rows);
  void attend_item(int thread, const AttentionItem& item, const KvPages& upcoming, int layer,
                   const LayerRows& rows);
  bool attends_in_bf16(const AttentionItem& item) const;
  KvPages pages_of(const AttentionItem& item, int layer, const LayerRows& rows) const;
  AttentionTask attention_task(const AttentionItem& item, int layer, const LayerRows& rows) const;
  void project_output(int thread, int layer, RowCounts rows);
  void gate_up(int thread, int layer, RowCounts rows);
  // SiLU of gate times up, as inputs of down_proj: of the rows `part`, the first of which is at own.gate.
  void activate(ThreadWorkspace& own, const LinearInput& inner, Range part, int32_t col_begin, int32_t cols);
  bool gates_in_one(const LayerWeights& weights, const LinearInput& input, const LinearInput& inner) const;
  void project_down(int thread, int layer, RowCounts rows);
  void compute_head(int thread, Range rows, int chunk);
  void read_logits(int thread, Range rows, int chunk);
  void read_hidden_states(int thread);
  void copy_hidden(int thread, int index);
  void copy_final_norm(int thread);

  bool quantizes(const PackedMatrix& weight) const;
  // Normalizes (unless `norm` is null) and quantizes or rounds rows; row r is at `first + index(r) * stride`.
  // `users` are the matrices that take them.
  LinearInput prepare(int thread, const float* first, int64_t stride, const int32_t* row_index,
                      RowCounts rows, int32_t cols, const float* norm,
                      std::initializer_list<const Linear*> users);
  // Quantizes or rounds x, which are the input's rows from `row` and columns from `col` on.
  void take_rows(const FloatRows& x, const LinearInput& input, int32_t row, int32_t col) const;
  LinearInput inner_input(RowCounts rows, const Linear& down) const;
  LinearInput view(const InputRows& memory, RowCounts rows, int32_t cols,
                   std::initializer_list<const Linear*> users) const;
  // This thread's share of the segments: of its node's tiles, or of the rows.
  template <size_t kSegments>
  void run_linears(int thread, const LinearInput& input, int claim, const Segment (&segments)[kSegments]);
  // Calls take(range, part) until all `count` items of item_bytes weights, the work of this thread's node,
  // are taken for all parts of the input, by this thread or by others of the node.
  template <typename Take>
  void take_ranges(int thread, const LinearInput& input, int count, size_t item_bytes, int claim,
                   const Take& take);
  // Calls take(owner, n) for pieces n = 0, 1, ... of this thread's share, then of others', until it returns
  // false; whoever comes first has a piece. Owners count from the team's first thread.
  template <typename Take>
  void take_pieces(int thread, Range team, int claim, const Take& take) {
    const int threads = team.end - team.begin;
    for (int i = 0; i <= kHelpedThreads && i < threads; ++i) {
      const int owner = (thread - team.begin + i) % threads;
      std::atomic<int>& next = workspace_.claims.of(claim, team.begin + owner);
      while (take(owner, next.fetch_add(1, std::memory_order_relaxed))) {
      }
    }
  }
  // Where this thread's share of the next stage's matrices begins, if it will be read by shares.
  Upcoming upcoming(int thread, int32_t rows, std::initializer_list<const PackedMatrix*> matrices,
                    int unit_tiles = 1) const;
  const ModelWeights& weights_of(int thread) const {
    return context_.weights[size_t(context_.nodes.node_of(thread))];
  }
  // What the threads of this thread's node compute of a matrix.
  Range node_tiles(int thread, const PackedMatrix& matrix) const {
    return context_.nodes.tiles_of(context_.nodes.node_of(thread), matrix.tiles());
  }
  static int claim_of(int layer, Claim claim) { return layer * kClaimsPerLayer + int(claim); }
  // Chunks of the head take turns with two.
  int head_claim(int chunk) const { return context_.config.layers * kClaimsPerLayer + chunk % 2; }
  void run_tiles(const LinearInput& input, const Linear& linear, const Target& target, Range tiles);
  void barrier(int thread, Upcoming upcoming = {});
  void finish_stage(int thread, Stage stage, Upcoming upcoming = {});

  ForwardContext context_;
  Workspace& workspace_;
  const KernelTable& kernels_;
  Batch batch_;
  StepOutputs outputs_;
  int32_t threads_;
  float attention_scale_;  // 1 / sqrt(head_dim)
  LayerRows all_rows_;
  LayerRows wanted_rows_;  // all that the last layer needs beyond keys and values, if ends_early_
  bool ends_early_ = false;
  std::vector<int32_t> sequence_of_token_;
  std::vector<int32_t> wanted_tokens_;  // of the batch, one per wanted row
  std::vector<HeadRow> head_rows_;      // empty where the caller gets the logits
  std::vector<int32_t> head_index_;     // where the residual stream has the rows whose logits are wanted
  std::vector<HiddenRows> hidden_reads_;
  std::vector<int32_t*> sampled_places_;      // [sequences], where their tokens go, if sampling
  std::vector<TokenScorer> scorers_;          // [threads]
  std::vector<std::exception_ptr> failures_;  // [threads]
  uint64_t stage_began_ = 0;
};

}  // namespace redoubt
