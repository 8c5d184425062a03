// The order of a step's stages, and those that are neither products (step/linear_stages.cc) nor attention
// (step/attention_stages.cc).
#include "step/forward.h"

#include <x86intrin.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "sampling/prompt_reader.h"
#include "sampling/sampler.h"

namespace redoubt {

ForwardPass::ForwardPass(const ForwardContext& context, const Batch& batch, const StepOutputs& outputs)
    : context_(context),
      workspace_(context.workspace),
      kernels_(context.kernels),
      batch_(batch),
      outputs_(outputs),
      threads_(context.pool.threads()),
      attention_scale_(float(1.0 / std::sqrt(double(context.config.head_dim)))),
      scorers_(size_t(threads_), TokenScorer(context.kernels)),
      failures_(size_t(threads_)) {
  list_rows();
  plan_attention_of(all_rows_);
  if (ends_early_) plan_attention_of(wanted_rows_);
}

void ForwardPass::list_rows() {
  LayerRows &all = all_rows_, &wanted = wanted_rows_;
  int32_t* place = outputs_.sampled;
  for (int32_t sequence = 0; sequence < batch_.sequences; ++sequence) {
    const int32_t queries = batch_.query_lengths[sequence], first_token = int32_t(sequence_of_token_.size());
    if (sequence == batch_.answers()) {
      all.answer_rows = first_token;
      wanted.answer_rows = int32_t(wanted_tokens_.size());
    }
    all.first_row.push_back(first_token);
    wanted.first_row.push_back(int32_t(wanted_tokens_.size()));
    wanted.query_lengths.push_back(want_rows(sequence, first_token));
    wanted.context_lengths.push_back(batch_.context_lengths[sequence] + queries -
                                     wanted.query_lengths.back());
    sequence_of_token_.insert(sequence_of_token_.end(), size_t(queries), sequence);
    if (outputs_.samplers == nullptr) continue;
    sampled_places_.push_back(place);
    for (int32_t i = 0; i <= batch_.drafts(sequence); ++i) *place++ = -1;
  }
  all.batch = wanted.batch = batch_;
  wanted.batch.tokens = int32_t(wanted_tokens_.size());
  if (batch_.prompts == 0) {
    all.answer_rows = batch_.tokens;
    wanted.answer_rows = wanted.batch.tokens;
  }
  wanted.batch.query_lengths = wanted.query_lengths.data();
  wanted.batch.context_lengths = wanted.context_lengths.data();
  ends_early_ =
      outputs_.logits == nullptr && outputs_.hidden_states == nullptr && wanted.batch.tokens < batch_.tokens;
  for (const HeadRow& row : head_rows_) {
    head_index_.push_back(ends_early_ ? row.wanted_row : wanted_tokens_[size_t(row.wanted_row)]);
  }
  if (outputs_.logits != nullptr) {
    for (int32_t token = 0; token < batch_.tokens; ++token) head_index_.push_back(token);
  }
}

// Lists which of a sequence's last rows are wanted after the last layer, and for what; returns how many.
int32_t ForwardPass::want_rows(int32_t sequence, int32_t first_token) {
  const int32_t queries = batch_.query_lengths[sequence], context = batch_.context_lengths[sequence];
  const bool samples = outputs_.samplers != nullptr && outputs_.samplers[sequence] != nullptr;
  const PromptReader* reader = outputs_.readers != nullptr ? outputs_.readers[sequence] : nullptr;
  const int32_t read = reader != nullptr ? reader->rows_wanted(context, queries) : 0;
  const int32_t sampled_rows = samples ? 1 + batch_.drafts(sequence) : 0;
  const int32_t count = std::max(sampled_rows, read), first_row = int32_t(wanted_tokens_.size());
  for (int32_t i = 0; i < count; ++i) {
    const int32_t query = queries - count + i;
    wanted_tokens_.push_back(first_token + query);
    const int32_t guesses = i - (count - sampled_rows);
    const bool sampled = samples && guesses >= 0;
    if (sampled || (reader != nullptr && reader->reads_logits())) {
      head_rows_.push_back({sequence, first_row + i, sampled ? -1 : context + query, guesses});
    }
  }
  if (read > 0 && !reader->reads_logits()) {
    hidden_reads_.push_back({sequence, first_row + count - read, context + queries - read, read});
  }
  return count;
}

void ForwardPass::plan_attention_of(LayerRows& rows) {
  rows.attention = plan_attention(rows.batch, context_.config, threads_);
  size_t scratch_bytes = 0;
  for (const AttentionItem& item : rows.attention.items) {
    const auto bytes_of =
        attends_in_bf16(item) ? kernels_.attention_bf16_scratch_bytes : kernels_.attention_scratch_bytes;
    scratch_bytes = std::max(scratch_bytes, bytes_of(attention_task(item, 0, rows)));
  }
  workspace_.reserve_attention(scratch_bytes, rows.attention.states_floats);
}

void ForwardPass::run() {
  stage_began_ = __rdtsc();
  context_.pool.run([this](int thread) { run_thread(thread); });
  for (const std::exception_ptr& failure : failures_) {
    if (failure) std::rethrow_exception(failure);
  }
}

void ForwardPass::run_thread(int thread) {
  workspace_.claims.reset(thread);  // used after the first barrier
  embed(thread);
  const int last = context_.config.layers - 1;
  for (int layer = 0; layer <= last; ++layer) {
    copy_hidden(thread, layer);
    if (layer == last && ends_early_) {
      run_last_layer(thread, layer);
    } else {
      run_layer(thread, layer);
    }
  }
  copy_hidden(thread, context_.config.layers);
  copy_final_norm(thread);
  read_hidden_states(thread);
  if (outputs_.logits != nullptr) {
    compute_head(thread, {0, int(head_index_.size())}, 0);
    return;
  }
  const int rows = int(head_rows_.size()), most = workspace_.logits_rows;
  for (int chunk = 0; chunk * most < rows; ++chunk) {
    const Range range{chunk * most, std::min((chunk + 1) * most, rows)};
    compute_head(thread, range, chunk);
    read_logits(thread, range, chunk);
  }
}

void ForwardPass::run_layer(int thread, int layer) {
  project_qkv(thread, layer);
  rope_and_store(thread, layer, all_rows_, {0, context_.config.heads + context_.config.kv_heads});
  attend_and_finish_layer(thread, layer, all_rows_);
}

// Nothing reads the last layer's output but the head (or a reader), and of a prompt the head reads one row:
// the other rows are needed for their keys and values only.
void ForwardPass::run_last_layer(int thread, int layer) {
  const int heads = context_.config.heads, kv_heads = context_.config.kv_heads;
  project_keys_values(thread, layer);
  rope_and_store(thread, layer, all_rows_, {heads, heads + kv_heads});
  if (wanted_rows_.batch.tokens == 0) return;
  keep_wanted_rows(thread);
  project_queries(thread, layer);
  rope_and_store(thread, layer, wanted_rows_, {0, heads});
  attend_and_finish_layer(thread, layer, wanted_rows_);
}

void ForwardPass::attend_and_finish_layer(int thread, int layer, const LayerRows& rows) {
  attend(thread, layer, rows);
  project_output(thread, layer, rows.counts());
  gate_up(thread, layer, rows.counts());
  project_down(thread, layer, rows.counts());
}

void ForwardPass::embed(int thread) {
  const Range rows = share(batch_.tokens, thread, threads_);
  for (int r = rows.begin; r < rows.end; ++r) {
    const int32_t token = batch_.token_ids[r];
    const int node =
        context_.nodes.owner_of(token / kTileOutputs, context_.weights.front().embedding.tiles());
    kernels_.dequantize_row(context_.weights[size_t(node)].embedding, token,
                            workspace_.hidden.data() + r * workspace_.hidden_stride);
    context_.rope_angles.fill(batch_.positions[r],
                              workspace_.angles.data() + int64_t(r) * context_.config.rope.rotary_dim);
  }
  finish_stage(thread, Stage::kEmbed);
}

// Moves the wanted rows of the residual stream, and their angles, to the front.
void ForwardPass::keep_wanted_rows(int thread) {
  if (thread == 0) {
    const int64_t hidden_bytes = int64_t(context_.config.hidden_size) * int64_t(sizeof(float));
    const int64_t rotary_dim = context_.config.rope.rotary_dim;
    for (int32_t r = 0; r < wanted_rows_.batch.tokens; ++r) {
      const int64_t from = wanted_tokens_[size_t(r)];
      std::memmove(workspace_.hidden.data() + r * workspace_.hidden_stride,
                   workspace_.hidden.data() + from * workspace_.hidden_stride, size_t(hidden_bytes));
      std::memmove(workspace_.angles.data() + r * rotary_dim, workspace_.angles.data() + from * rotary_dim,
                   size_t(rotary_dim) * sizeof(float));
    }
  }
  barrier(thread);
}

void ForwardPass::read_logits(int thread, Range rows, int chunk) {
  workspace_.claims.of(head_claim(chunk + 1), thread).store(0, std::memory_order_relaxed);
  const Range own = share(rows.end - rows.begin, thread, threads_);
  try {
    const auto logits_of = [&](int r) { return workspace_.logits.data() + r * workspace_.logits_stride; };
    for (int r = own.begin; r < own.end; ++r) {
      const HeadRow& row = head_rows_[size_t(rows.begin + r)];
      if (row.token_index >= 0) {
        outputs_.readers[row.sequence]->read(row.token_index, logits_of(r), scorers_[size_t(thread)]);
      } else if (row.guesses == 0 || r == 0) {
        // A sampler goes from row to row, so whoever has its first one takes those after its guesses too.
        sample_row(row, logits_of(r));
        for (int next = r + 1; next < rows.end - rows.begin; ++next) {
          const HeadRow& later = head_rows_[size_t(rows.begin + next)];
          if (later.sequence != row.sequence) break;
          sample_row(later, logits_of(next));
        }
      }
    }
  } catch (...) {
    failures_[size_t(thread)] = std::current_exception();
  }
  finish_stage(thread, Stage::kSample);
}

// Samples unless a guess before the row turned out wrong.
void ForwardPass::sample_row(const HeadRow& row, float* logits) {
  int32_t* sampled = sampled_places_[size_t(row.sequence)] + row.guesses;
  const int32_t token = wanted_tokens_[size_t(row.wanted_row)];
  if (row.guesses > 0 && sampled[-1] != batch_.token_ids[token]) return;
  *sampled = outputs_.samplers[row.sequence]->sample(logits);
}

// A reader gets its rows in order, so one thread reads them all.
void ForwardPass::read_hidden_states(int thread) {
  const Range own = share(int(hidden_reads_.size()), thread, threads_);
  float* normalized = workspace_.threads[size_t(thread)].rows.data();
  for (int i = own.begin; i < own.end; ++i) {
    const HiddenRows& rows = hidden_reads_[size_t(i)];
    for (int32_t r = 0; r < rows.count; ++r) {
      const int64_t wanted = rows.first_wanted_row + r;
      const int64_t at = ends_early_ ? wanted : wanted_tokens_[size_t(wanted)];
      kernels_.rms_norm(workspace_.hidden.data() + at * workspace_.hidden_stride,
                        context_.weights.front().final_norm, context_.config.rms_norm_epsilon,
                        context_.config.hidden_size, normalized);
      outputs_.readers[rows.sequence]->read(rows.first_token_index + r, normalized, scorers_[size_t(thread)]);
    }
  }
}

void ForwardPass::copy_hidden(int thread, int index) {
  if (outputs_.hidden_states == nullptr) return;
  const int64_t size = context_.config.hidden_size;
  const Range rows = share(batch_.tokens, thread, threads_);
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    std::memcpy(outputs_.hidden_states + (int64_t(index) * batch_.tokens + r) * size,
                workspace_.hidden.data() + r * workspace_.hidden_stride, size_t(size) * sizeof(float));
  }
}

void ForwardPass::copy_final_norm(int thread) {
  if (outputs_.hidden_states == nullptr) return;
  const ModelConfig& config = context_.config;
  const Range rows = share(batch_.tokens, thread, threads_);
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    kernels_.rms_norm(
        workspace_.hidden.data() + r * workspace_.hidden_stride, context_.weights.front().final_norm,
        config.rms_norm_epsilon, config.hidden_size,
        outputs_.hidden_states + ((int64_t(config.layers) + 1) * batch_.tokens + r) * config.hidden_size);
  }
}

void ForwardPass::barrier(int thread, Upcoming upcoming) {
  if (thread != 0) return context_.pool.barrier(upcoming);
  const uint64_t began = __rdtsc();
  context_.pool.barrier(upcoming);
  context_.profile.barrier_ticks += __rdtsc() - began;
}

void ForwardPass::finish_stage(int thread, Stage stage, Upcoming upcoming) {
  barrier(thread, upcoming);
  if (thread != 0) return;
  const uint64_t now = __rdtsc();
  context_.profile.stage_ticks[size_t(stage)] += now - stage_began_;
  stage_began_ = now;
}

}  // namespace redoubt
