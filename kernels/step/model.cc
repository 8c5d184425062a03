// Loads a packed model and checks every batch. How a step is computed is in step/decoder.cc.
#include "step/model.h"

#include <x86intrin.h>

#include <algorithm>
#include <functional>
#include <stdexcept>

#include "model/kv_turn.h"
#include "sampling/prompt_reader.h"
#include "step/decoder.h"
#include "step/plan.h"
#include "step/workspace.h"

namespace redoubt {
namespace {

constexpr int32_t kMostPages = 1 << 24;

[[noreturn]] void reject(const std::string& name, const std::string& reason) {
  throw std::invalid_argument(name + ": " + reason);
}

void check_option(const char* name, int32_t value, int32_t most) {
  if (value < 1 || value > most) {
    reject(name, std::to_string(value) + " is not in 1 .. " + std::to_string(most));
  }
}

ModelOptions checked(ModelOptions options) {
  check_option("threads", options.threads, 1024);
  check_option("kv_pages", options.kv_pages, kMostPages);
  check_option("max_sequences", options.max_sequences, 1 << 16);
  check_option("max_step_tokens", options.max_step_tokens, 1 << 20);
  check_option("max_context_tokens", options.max_context_tokens, 1 << 24);
  if (options.max_step_tokens < options.max_sequences) {
    reject("max_step_tokens", std::to_string(options.max_step_tokens) + " is less than max_sequences");
  }
  return options;
}

constexpr const char* kWeightsName = "model.safetensors";

std::vector<RopeAngles> angles_of(const ModelConfig& config, int32_t max_positions) {
  std::vector<RopeAngles> angles;
  for (const RopeConfig& rope : config.ropes) angles.emplace_back(rope, max_positions);
  return angles;
}

// Each slot has a page of its own beside those that the caller gives out, for drafts behind its last page.
// Nothing but the predictor's part of it is ever touched.
int32_t all_pages(const ModelConfig& config, const ModelOptions& options) {
  return options.kv_pages + (config.predictor ? options.max_sequences : 0);
}

size_t cache_bytes(const ModelConfig& config, const ModelOptions& options) {
  return size_t(all_pages(config, options)) *
             KvCache::page_bytes(options.kv_type, page_groups_of(config, options)) +
         size_t(options.state_pages) * StatePages::page_bytes(config);
}

StatePages state_pages_of(const ModelConfig& config, const ModelOptions& options) {
  if (!config.keeps_states()) return {};
  check_option("state_pages", options.state_pages, kMostPages);
  return {config, options.state_pages};
}

// head: the file of options.head, or null.
std::vector<ModelWeights> find_weights_by_node(const PackedFile& file, const PackedFile* head,
                                               const ModelConfig& config, const ModelOptions& options,
                                               const ThreadNodes& nodes) {
  std::vector<ModelWeights> weights;
  for (int node = 0; node < nodes.nodes(); ++node) weights.push_back(find_model_weights(file, config, node));
  if (head == nullptr) return weights;
  const ModelConfig head_config = model_config_of(options.head);
  for (int node = 0; node < nodes.nodes(); ++node) {
    add_head_weights(*head, head_config, node, weights[size_t(node)]);
  }
  return weights;
}

// The best tier's kernels; where heads don't fill its vectors, the scalar ones write and read keys and
// values, or states. Rotation takes heads, and parts of them, of any size.
KernelTable choose_kernels(const ModelConfig& config) {
  KernelTable table = kernel_table(default_tier());
  if (const DeltaConfig* const delta = config.delta(); delta != nullptr && delta->value_dim % 16 != 0) {
    table.delta_page = kernel_table(Tier::kScalar).delta_page;
  }
  const auto fits = [](const LayerConfig& kind) { return kind.attention.shape.head_dim % 16 == 0; };
  if (!std::all_of(config.kinds.begin(), config.kinds.end(), fits)) {
    const KernelTable& scalar = kernel_table(Tier::kScalar);
    table.write_kv = scalar.write_kv;
    table.attention = scalar.attention;
    table.attention_partition = scalar.attention_partition;
    table.attention_merge = scalar.attention_merge;
    table.attention_scratch_bytes = scalar.attention_scratch_bytes;
  }
  return table;
}

// What is changed by one reader must not be used by another at the same time.
void check_readers(const Batch& batch, const StepOutputs& outputs) {
  if (outputs.readers == nullptr) return;
  std::vector<PromptReader::Shared> shared;
  for (int32_t s = 0; s < batch.sequences; ++s) {
    if (outputs.readers[s] == nullptr) continue;
    const PromptReader::Shared of_reader = outputs.readers[s]->shared();
    if (of_reader.object != nullptr) shared.push_back(of_reader);
  }
  std::sort(shared.begin(), shared.end(), [](const auto& a, const auto& b) {
    return std::less<>()(a.object, b.object) || (a.object == b.object && a.changes > b.changes);
  });
  for (size_t i = 1; i < shared.size(); ++i) {
    if (shared[i - 1].object == shared[i].object && shared[i - 1].changes) {
      reject("readers", "one appends to a history that another one uses in the same step");
    }
  }
}

// Refuses kernels that have no bf16 but the scalar tier's, which is for tests.
void require_bf16(Tier tier, const char* option) {
  if (tier == Tier::kAmxInt8 || tier == Tier::kScalar) return;
  reject(option,
         std::string("bf16 needs a processor with AMX; the kernels here are ") + tier_name(tier) + "'s");
}

PackedFile open_weights(const ModelOptions& options, const ModelFiles* files, size_t other_bytes,
                        ThreadPool& pool, const ThreadNodes& nodes) {
  const bool bind = options.bind_weights && !options.nodes.empty();
  if (files != nullptr) return {*files, kWeightsName, options.weight_memory, other_bytes, pool, nodes, bind};
  return {options.folder + "/" + kWeightsName, options.weight_memory, other_bytes, pool, nodes, bind};
}

std::unique_ptr<PackedFile> open_head(const ModelOptions& options, ThreadPool& pool,
                                      const ThreadNodes& nodes) {
  if (options.head.empty()) return nullptr;
  return std::make_unique<PackedFile>(options.head + "/" + kWeightsName, options.weight_memory, 0, pool,
                                      nodes, options.bind_weights && !options.nodes.empty());
}

}  // namespace

ModelConfig with_predictor(ModelConfig config, bool predicts, const std::string& head) {
  if (config.is_head()) reject("folder", "an EAGLE-3 head drafts for a model, and is none itself");
  if (!head.empty()) {
    config.add_head(model_config_of(head));
  } else if (!predicts) {
    config.leave_predictor_out();
  } else if (!config.predictor) {
    reject("predicts", "the model has no layer of multi-token prediction");
  }
  return config;
}

ModelConfig model_config_of(const std::string& folder) {
  const std::string path = folder + "/" + kWeightsName;
  return read_model_config(path, read_description(path));
}

ModelConfig model_config_of(const ModelFiles& files) {
  return read_model_config(files.path(kWeightsName), read_description(files, kWeightsName));
}

PageGroups page_groups_of(const ModelConfig& config, const ModelOptions& options) {
  return options.page_groups ? page_groups_of(config, options.max_context_tokens) : one_page_group(config);
}

Bf16Uses bf16_uses(ComputeType type, PromptComputeType prompts, Tier tier) {
  if (type == ComputeType::kFp32) {
    if (prompts == PromptComputeType::kBf16) {
      reject("prompt_compute_type", "bf16 does not go with compute_type fp32");
    }
    return {};
  }
  if (type == ComputeType::kBf16) require_bf16(tier, "compute_type");
  if (prompts == PromptComputeType::kBf16) require_bf16(tier, "prompt_compute_type");
  const bool is_fast = tier == Tier::kAmxInt8;
  return {.prompts = prompts == PromptComputeType::kBf16 || (prompts == PromptComputeType::kAuto && is_fast),
          .all = type == ComputeType::kBf16 || (type == ComputeType::kAuto && is_fast)};
}

Model::Model(const ModelOptions& options, const ModelFiles* files)
    : options_(checked(options)),
      config_(with_predictor(files == nullptr ? model_config_of(options.folder) : model_config_of(*files),
                             options.predicts, options.head)),
      kernels_(choose_kernels(config_)),
      bf16_(bf16_uses(options_.compute_type, options_.prompt_compute_type, kernels_.tier)),
      pool_(options.threads, options.cpus),
      nodes_(options.threads, options.nodes),
      file_(open_weights(options, files, cache_bytes(config_, options_), pool_, nodes_)),
      head_file_(open_head(options, pool_, nodes_)),
      weights_(find_weights_by_node(file_, head_file_.get(), config_, options, nodes_)),
      rope_angles_(angles_of(config_, options.max_context_tokens)),
      kv_cache_(options.kv_type, redoubt::page_groups_of(config_, options), all_pages(config_, options_)),
      state_pages_(state_pages_of(config_, options_)),
      pages_per_sequence_((options.max_context_tokens + kPageTokens - 1) / kPageTokens),
      page_table_(page_table_entries()),
      state_page_uses_(size_t(state_pages_.pages())),
      batch_page_table_(page_table_entries()),
      slot_taken_(size_t(options.max_sequences)),
      workspace_(new_workspace()),
      last_hidden_(config_.predictor ? LastHidden(options.max_sequences, config_.hidden_size) : LastHidden()),
      draft_hidden_(config_.predictor ? LastHidden(options.max_sequences, config_.hidden_size)
                                      : LastHidden()) {}

Model::~Model() = default;

Tier Model::attention_tier() const {
  return kernels_.attention == kernel_table(kernels_.tier).attention ? kernels_.tier : Tier::kScalar;
}

bool Model::has_relative_positions() const {
  if (has_states() || config_.learned_positions) return false;
  const auto has_temperature = [](const LayerConfig& kind) { return kind.attention.temperature_scale != 0; };
  return std::none_of(config_.kinds.begin(), config_.kinds.end(), has_temperature) &&
         std::all_of(rope_angles_.begin(), rope_angles_.end(),
                     [](const RopeAngles& angles) { return angles.is_relative(); });
}

size_t Model::page_table_entries() const {
  return size_t(page_groups().count()) * size_t(options_.max_sequences) * size_t(pages_per_sequence_);
}

std::unique_ptr<Workspace> Model::new_workspace() const {
  return std::make_unique<Workspace>(config_, options_.max_step_tokens, options_.max_sequences,
                                     options_.threads);
}

void Model::release_memory() {
  kv_cache_.release();
  state_pages_.release();
  file_.release();
  if (head_file_) head_file_->release();
  workspace_ = new_workspace();  // takes no memory before it is touched
  last_hidden_.forget();
  draft_hidden_.forget();
}

void Model::forget_slot(int32_t slot) {
  if (slot < 0 || slot >= options_.max_sequences) {
    reject("slot", std::to_string(slot) + " is not in 0 .. " + std::to_string(options_.max_sequences));
  }
  if (!config_.predictor) return;
  // A slot that has drafted nothing has an empty page, which is not touched.
  if (draft_hidden_.base(slot) >= 0) kv_cache_.clear_page(options_.kv_pages + slot);
  last_hidden_.forget(slot);
  draft_hidden_.forget(slot);
}

size_t Model::activation_bytes() const {
  return workspace_->bytes() + last_hidden_.bytes() + draft_hidden_.bytes();
}

std::array<StageTicks, kStages>* Model::profile_of(const Batch& batch) {
  if (!is_profiled_) return nullptr;
  const size_t kind = size_t(batch.prompts > 0 ? StepKind::kPrompt : StepKind::kDecode);
  ++profile_.steps[kind];
  return &profile_.ticks[kind];
}

void Model::run(const Batch& given, const StepOutputs& outputs) {
  check_sizes(given);
  const Batch& batch = batch_.copy(with_layers(given));
  check_tokens(batch);
  check_sequences(batch);
  check_readers(batch, outputs);
  copy_page_table(batch);
  copy_state_pages(batch);
  if (batch.part != LayerPart::kWhole) return run_rows(batch, outputs);
  if (batch.sequences > 0) run(batch, outputs, nullptr);
}

void Model::run_rows(const Batch& batch, const StepOutputs& outputs) {
  check_part(batch);
  std::vector<int32_t> lengths, contexts;
  int32_t first_sequence = 0, end = 0;
  for (int32_t s = 0; s < batch.sequences; ++s) {
    const int32_t begin = end;
    end += batch.query_lengths[s];
    const int32_t first = std::max(begin, batch.first_row), last = std::min(end, batch.end_row);
    if (first >= last) continue;
    if (lengths.empty()) first_sequence = s;
    lengths.push_back(last - first);
    contexts.push_back(first - begin);
  }
  Batch rows = batch;
  rows.tokens = batch.end_row - batch.first_row;
  rows.sequences = rows.prompts = int32_t(lengths.size());
  rows.token_ids += batch.first_row;
  rows.positions += batch.first_row;
  rows.slots += first_sequence;
  rows.query_lengths = lengths.data();
  rows.context_lengths = contexts.data();
  rows.key_lengths = batch.query_lengths + first_sequence;
  run(rows, {}, nullptr, first_sequence);
  if (outputs.final_hidden == nullptr) return;
  Batch all = batch;
  all.part = LayerPart::kWhole;
  all.first_row = 0;
  all.first_layer = all.end_layer;
  run(all, outputs, nullptr);
}

void Model::draft(const Batch& given, int32_t depth, Sampler* const* samplers, int32_t* tokens,
                  float* chances) {
  if (!config_.predictor) throw std::invalid_argument("this model does not predict (ModelOptions::predicts)");
  if (depth < 1 || depth > kMostDrafts) {
    reject("depth", std::to_string(depth) + " is not in 1 .. " + std::to_string(kMostDrafts));
  }
  check_sizes(given);
  const Batch& all = batch_.copy(given);
  check_tokens(all);
  check_sequences(all);
  if (all.tokens != all.sequences) reject("query_lengths", "a sequence drafts from one token");
  std::vector<int32_t> drafting, token_ids, positions, slots, contexts, bases;
  std::vector<Sampler*> drawing;
  for (int32_t s = 0; s < all.sequences; ++s) {
    const int32_t slot = all.slots[s], context = all.context_lengths[s];
    std::fill_n(tokens + int64_t(s) * depth, depth, -1);
    std::fill_n(chances + int64_t(s) * depth, depth, 0.0f);
    if (context + depth > options_.max_context_tokens) {
      reject("context_lengths", std::to_string(context) + " and " + std::to_string(depth) +
                                    " drafts are more than max_context_tokens");
    }
    const LastHidden* const hidden = hidden_of(slot, context);
    if (hidden == nullptr || context + depth > hidden->base(slot) + kMostDrafts) continue;
    copy_draft_pages(slot, hidden->base(slot), int32_t(drafting.size()));
    std::copy_n(hidden->row(slot), config_.hidden_size,
                workspace_->predictor_states.data() + int64_t(drafting.size()) * workspace_->hidden_stride);
    bases.push_back(hidden->base(slot));
    drafting.push_back(s);
    drawing.push_back(samplers == nullptr ? nullptr : samplers[s]);
    token_ids.push_back(all.token_ids[s]);
    positions.push_back(all.positions[s]);
    slots.push_back(slot);
    contexts.push_back(context);
  }
  if (drafting.empty()) return;
  const std::vector<int32_t> ones(drafting.size(), 1);
  std::vector<float> found(drafting.size());
  Batch batch;
  batch.tokens = batch.sequences = int32_t(drafting.size());
  batch.token_ids = token_ids.data();
  batch.positions = positions.data();
  batch.slots = slots.data();
  batch.query_lengths = ones.data();
  batch.context_lengths = contexts.data();
  const DraftOutputs drafts{drawing.data(), token_ids.data(), found.data()};
  for (int32_t i = 0; i < depth; ++i) {
    run(batch, {}, &drafts);
    for (size_t d = 0; d < drafting.size(); ++d) {
      const int64_t place = int64_t(drafting[d]) * depth + i;
      tokens[place] = token_ids[d];
      chances[place] = found[d];
      ++positions[d];
      ++contexts[d];
    }
  }
  for (size_t d = 0; d < drafting.size(); ++d) {
    std::copy_n(workspace_->predictor_states.data() + int64_t(d) * workspace_->hidden_stride,
                config_.hidden_size, draft_hidden_.row(slots[d]));
    const int32_t page = predictor_pages(slots[d])[(bases[d] - 1) / kPageTokens];
    draft_hidden_.keep(slots[d], contexts[d], page, bases[d]);
  }
}

// Where the hidden state before a slot's token is; null: nowhere.
const LastHidden* Model::hidden_of(int32_t slot, int32_t context) const {
  const auto page_of = [&](int32_t tokens) {
    return page_table_.data()[predictor_row(slot) + (tokens - 1) / kPageTokens];
  };
  if (context == 0) return nullptr;
  if (last_hidden_.is_of(slot, context, page_of(context))) return &last_hidden_;
  const int32_t base = draft_hidden_.base(slot);
  if (base < 1 || !last_hidden_.is_of(slot, base, page_of(base))) return nullptr;
  return draft_hidden_.is_of(slot, context, page_of(base)) ? &draft_hidden_ : nullptr;
}

int64_t Model::predictor_row(int32_t sequence) const {
  const int64_t group = page_groups().of_layer[size_t(config_.layers)].group;
  return (group * options_.max_sequences + sequence) * pages_per_sequence_;
}

// The sequence's own pages, as far as they have tokens, and behind them the slot's page for drafts.
void Model::copy_draft_pages(int32_t slot, int32_t context, int32_t sequence) {
  const int32_t* const from = predictor_pages(slot);
  int32_t* const to = batch_page_table_.data() + predictor_row(sequence);
  const int32_t pages = (context + kPageTokens - 1) / kPageTokens;
  for (int32_t i = 0; i < pages; ++i) {
    to[i] = from[i];
    if (to[i] < 0 || to[i] >= options_.kv_pages) {
      reject("page_table", "slot " + std::to_string(slot) + ", page " + std::to_string(i) + " is " +
                               std::to_string(to[i]) + ", not in 0 .. " + std::to_string(options_.kv_pages));
    }
  }
  if (pages < pages_per_sequence_) to[pages] = options_.kv_pages + slot;
}

void Model::run(const Batch& batch, const StepOutputs& outputs, const DraftOutputs* drafts,
                int32_t first_sequence) {
  const StepPlan plan(batch, outputs, config_, options_.threads);
  FirstFailure failure;
  run_step({.config = config_,
            .weights = weights_,
            .nodes = nodes_,
            .kernels = kernels_,
            .rope_angles = rope_angles_,
            .kv_cache = kv_cache_,
            .state_pages = state_pages_,
            .compute_type = options_.compute_type,
            .bf16 = bf16_,
            .page_tables = batch_page_table_.data() + int64_t(first_sequence) * pages_per_sequence_,
            .max_sequences = options_.max_sequences,
            .pages_per_sequence = pages_per_sequence_,
            .pool = pool_,
            .workspace = *workspace_,
            .profile = drafts == nullptr ? profile_of(batch) : nullptr,
            .last_hidden = last_hidden_,
            .drafts = drafts,
            .batch = batch,
            .outputs = outputs,
            .plan = plan,
            .failure = failure,
            .began_ticks = __rdtsc()});
}

// All of them, unless the caller says which.
Batch Model::with_layers(Batch batch) const {
  if (batch.end_layer == 0) batch.end_layer = config_.layers;
  if (batch.first_layer < 0 || batch.first_layer >= batch.end_layer || batch.end_layer > config_.layers) {
    reject("end_layer", std::to_string(batch.first_layer) + " .. " + std::to_string(batch.end_layer) +
                            " are not layers of " + std::to_string(config_.layers));
  }
  return batch;
}

void Model::check_part(const Batch& batch) const {
  const auto has_latent = [](const LayerConfig& kind) { return kind.attention.latent.has_value(); };
  if (!config_.encoder || config_.layer_inputs ||
      std::any_of(config_.kinds.begin(), config_.kinds.end(), has_latent)) {
    reject("part", "this model's layers are computed whole");
  }
  if (batch.end_layer != batch.first_layer + 1) reject("end_layer", "a part is of one layer");
  if (batch.first_row < 0 || batch.first_row >= batch.end_row || batch.end_row > batch.tokens) {
    reject("end_row", std::to_string(batch.first_row) + " .. " + std::to_string(batch.end_row) +
                          " are not rows of " + std::to_string(batch.tokens));
  }
}

void Model::copy_page_turned(int32_t source, int32_t target, int32_t positions) {
  if (has_states()) throw std::invalid_argument("positions: states can't be moved to other positions");
  redoubt::copy_page_turned(kv_cache_, config_, rope_angles_, source, target, positions);
}

void Model::check_sizes(const Batch& batch) const {
  if (batch.sequences > options_.max_sequences) {
    reject("slots", std::to_string(batch.sequences) + " sequences, more than max_sequences");
  }
  if (batch.prompts < 0 || batch.prompts > batch.sequences) {
    reject("prompts",
           std::to_string(batch.prompts) + " of " + std::to_string(batch.sequences) + " sequences");
  }
  if (batch.tokens > options_.max_step_tokens) {
    reject("token_ids", std::to_string(batch.tokens) + " tokens, more than max_step_tokens");
  }
}

void Model::check_tokens(const Batch& batch) const {
  if (batch.hidden_states != nullptr && config_.layer_inputs) {
    reject("hidden_states", "this model's layers have inputs that come from tokens");
  }
  for (int32_t t = 0; t < batch.tokens; ++t) {
    if (batch.token_ids[t] < 0 || batch.token_ids[t] >= config_.vocab_size) {
      reject("token_ids", std::to_string(batch.token_ids[t]) + " is not in the vocabulary");
    }
    if (batch.positions[t] < 0) reject("positions", std::to_string(batch.positions[t]) + " is negative");
    const int64_t positions = int64_t(config_.max_positions) * std::max(1, config_.token_types);
    if (config_.learned_positions && batch.positions[t] >= positions) {
      reject("positions", std::to_string(batch.positions[t]) + " is not below " + std::to_string(positions) +
                              ", and this model's are learned");
    }
  }
}

void Model::check_sequences(const Batch& batch) {
  std::fill(slot_taken_.begin(), slot_taken_.end(), false);
  int64_t tokens = 0;
  for (int32_t s = 0; s < batch.sequences; ++s) {
    const int32_t slot = batch.slots[s], queries = batch.query_lengths[s], context = batch.context_lengths[s];
    if (slot < 0 || slot >= options_.max_sequences) {
      reject("slots", std::to_string(slot) + " is out of range");
    }
    if (slot_taken_[size_t(slot)]) reject("slots", std::to_string(slot) + " is there twice");
    slot_taken_[size_t(slot)] = true;
    if (queries < 1) reject("query_lengths", std::to_string(queries) + " is less than 1");
    if (context < 0) reject("context_lengths", std::to_string(context) + " is negative");
    if (int64_t(context) + queries > options_.max_context_tokens) {
      reject("context_lengths", std::to_string(context) + " and " + std::to_string(queries) +
                                    " new tokens are more than max_context_tokens");
    }
    if (config_.encoder && context > 0) {
      reject("context_lengths", std::to_string(context) + ", but an encoder's sequences are whole");
    }
    tokens += queries;
    const int32_t drafts = batch.drafts(s);
    if (drafts < 0 || drafts >= queries) {
      reject("draft_lengths",
             std::to_string(drafts) + " guesses in " + std::to_string(queries) + " new tokens");
    }
  }
  if (tokens != batch.tokens) {
    reject("query_lengths", "they add up to " + std::to_string(tokens) + ", but there are " +
                                std::to_string(batch.tokens) + " tokens");
  }
}

// Checks the copy: the caller's table may change while the step runs without the interpreter's lock.
void Model::copy_page_table(const Batch& batch) {
  if (config_.encoder) return number_pages(batch);
  for (int32_t group = 0; group < page_groups().count(); ++group) {
    if (group == page_groups().state_group) continue;
    for (int32_t s = 0; s < batch.sequences; ++s) copy_page_table(batch, group, s);
  }
}

// An encoder's pages are nobody's after the step: each sequence gets the next ones.
void Model::number_pages(const Batch& batch) {
  int32_t next = 0;
  for (int32_t s = 0; s < batch.sequences; ++s) {
    const int32_t pages = (batch.query_lengths[s] + kPageTokens - 1) / kPageTokens;
    if (pages > options_.kv_pages - next) {
      reject("query_lengths", "they need more than the " + std::to_string(options_.kv_pages) + " kv_pages");
    }
    int32_t* to = batch_page_table_.data() + int64_t(s) * pages_per_sequence_;
    for (int32_t i = 0; i < pages; ++i) to[i] = next++;
  }
}

void Model::copy_page_table(const Batch& batch, int32_t group, int32_t sequence) {
  const int32_t slot = batch.slots[sequence], context = batch.context_lengths[sequence];
  const int32_t pages = (context + batch.query_lengths[sequence] + kPageTokens - 1) / kPageTokens;
  const int64_t row = int64_t(group) * options_.max_sequences;
  const int32_t* from = page_table_.data() + (row + slot) * pages_per_sequence_;
  int32_t* to = batch_page_table_.data() + (row + sequence) * pages_per_sequence_;
  for (int32_t i = page_groups().first_page(group, context); i < pages; ++i) {
    to[i] = from[i];
    if (to[i] < 0 || to[i] >= options_.kv_pages) {
      const std::string of_group = page_groups().count() > 1 ? "group " + std::to_string(group) + ", " : "";
      reject("page_table", of_group + "slot " + std::to_string(slot) + ", page " + std::to_string(i) +
                               " is " + std::to_string(to[i]) + ", not in 0 .. " +
                               std::to_string(options_.kv_pages));
    }
  }
}

void Model::copy_state_pages(const Batch& batch) {
  if (!has_states()) return;
  ++steps_;
  for (int32_t s = 0; s < batch.sequences; ++s) copy_state_pages(batch, s);
}

// The page before the first token and those of tokens before it are read, those of new tokens are written.
void Model::copy_state_pages(const Batch& batch, int32_t sequence) {
  const int32_t slot = batch.slots[sequence], group = page_groups().state_group;
  const int32_t begin = batch.context_lengths[sequence], end = begin + batch.query_lengths[sequence];
  const int64_t row = int64_t(group) * options_.max_sequences;
  const int32_t* from = page_table_.data() + (row + slot) * pages_per_sequence_;
  int32_t* to = batch_page_table_.data() + (row + sequence) * pages_per_sequence_;
  const int32_t first_written = begin / kPageTokens, last = (end - 1) / kPageTokens;
  for (int32_t i = page_groups().first_page(group, begin); i <= last; ++i) {
    const int32_t page = to[i] = from[i];
    const auto fail = [&](const std::string& reason) {
      reject("page_table", "group " + std::to_string(group) + " (states), slot " + std::to_string(slot) +
                               ", page " + std::to_string(i) + " is " + std::to_string(page) + reason);
    };
    const bool is_written = i >= first_written;
    const bool has_earlier_tokens = begin > i * kPageTokens, has_last_token = i == last;
    const bool is_before_unfinished = i == last - 1 && end % kPageTokens != 0;
    if (page == kNoPage && !has_earlier_tokens && !has_last_token && !is_before_unfinished) continue;
    if (page < 0 || page >= state_pages_.pages()) {
      fail(", not in 0 .. " + std::to_string(state_pages_.pages()));
    }
    int64_t& use = state_page_uses_[size_t(page)];
    if (use / 2 == steps_ && (is_written || use % 2 == 1)) fail(", which the step writes in another place");
    use = 2 * steps_ + (is_written ? 1 : 0);
  }
}

}  // namespace redoubt
