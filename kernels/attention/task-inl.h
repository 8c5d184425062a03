// From tasks to tiles: cuts a task's rows into blocks of tiles, takes the partitions in ascending order and
// merges them. Included inside the tier's namespace and target region, after attention/float-inl.h and
// attention/rows-inl.h.

// Scratch memory: every part is a multiple of 64 bytes.
struct Scratch {
  float* queries;       // packed, tile after tile: [head_dim][rows of the tile]
  float* outputs;       // [kMaxTileRows][head_dim], of partitions after the first
  float* scores;        // [kMaxTileRows][kScoreStride]
  float* maxima;        // [kBlockRows]
  float* sums;          // [kBlockRows]
  float* query_scales;  // [kBlockRows], over pages of integers
  float* value_scales;  // [kPartitionTokens], over pages of integers
  Scratch(void* memory, int head_dim)
      : queries(static_cast<float*>(memory)),
        outputs(queries + kBlockRows * head_dim),
        scores(outputs + kMaxTileRows * head_dim),
        maxima(scores + kMaxTileRows * kScoreStride),
        sums(maxima + kBlockRows),
        query_scales(sums + kBlockRows),
        value_scales(query_scales + kBlockRows) {}
};

size_t attention_scratch_bytes(const AttentionTask& task) {
  const size_t floats = size_t(kBlockRows + kMaxTileRows) * task.kv.head_dim + kMaxTileRows * kScoreStride +
                        3 * kBlockRows + kPartitionTokens;
  return (floats * sizeof(float) + 63) / 64 * 64;
}

// Rows are cut into tiles whose sizes differ by one at most; a block is some tiles in a row.
struct Tiling {
  int64_t rows;
  int64_t tiles;
  explicit Tiling(const AttentionTask& task)
      : rows(int64_t(task.query_tokens) * task.group_heads),
        tiles((rows + kMaxTileRows - 1) / kMaxTileRows) {}
  int64_t first_row(int64_t tile) const { return rows * tile / tiles; }
};

// Queries of rows first .. end as a tile has them; `scales` is for pages of integers only.
void pack_queries(const AttentionTask& task, int64_t first, int64_t end, float* packed, float* scales) {
  const float scale_log2e = task.scale * kLog2eHigh;
  const int64_t rows = end - first;
  if (is_fixed_point(task.kv.type)) {
    for (int64_t r = 0; r < rows; ++r) {
      auto* codes = reinterpret_cast<int16_t*>(packed) + 2 * r;
      scales[r] = pack_fixed_query(task.kv.type, query_of(task, first + r), scale_log2e, task.kv.head_dim,
                                   rows, codes);
    }
    return;
  }
  for (int64_t row = first; row < end; ++row) {
    const float* query = query_of(task, row);
    for (int d = 0; d < task.kv.head_dim; ++d) packed[d * rows + row - first] = query[d] * scale_log2e;
  }
}

Tile empty_tile(const AttentionTask& task, const Scratch& scratch) {
  const KvView& kv = task.kv;
  Tile tile{};
  tile.queries = scratch.queries;
  tile.scores = scratch.scores;
  tile.query_scales = scratch.query_scales;
  tile.value_scales = scratch.value_scales;
  tile.head_dim = kv.head_dim;
  tile.values_offset = values_offset_bytes(kv.type, kv.head_dim);
  tile.modifies = modifies_scores(task);
  return tile;
}

// Of rows row .. row + rows what they see of partition p and, where scores are modified, how.
void describe_rows(const AttentionTask& task, int64_t row, int64_t rows, int p, Tile& tile) {
  for (int64_t r = 0; r < rows; ++r) tile.seen[r] = seen_by(task, row + r, p);
  if (!tile.modifies) return;
  for (int64_t r = 0; r < rows; ++r) {
    tile.modifiers[r] = modifier_of(task, row + r);
    tile.distances[r] = distance_to(task, row + r, p);
  }
}

// The pages of partition p that hold the sequence's keys `seen`, and the pages after them, which are
// prefetched: the next partition's, or the task's upcoming ones.
void find_blocks(const AttentionTask& task, int p, KeyRange seen, Tile& tile) {
  const int seen_page = seen.begin / kPageTokens, pages = (seen.end + kPageTokens - 1) / kPageTokens;
  const int first = p * kPartitionPages, skipped = seen_page > first ? seen_page - first : 0;
  const auto own = [&](int page) {
    if (page >= pages) page = pages - 1;
    return page_block(task.kv, page < seen_page ? seen_page : page);
  };
  const auto later = [&](int i) {
    const KvPages& next = task.upcoming;
    if (next.count == 0) return own(first + kPartitionPages + i);
    return page_block(next.kv, next.first + (i < next.count ? i : next.count - 1));
  };
  const bool is_last = pages <= first + kPartitionPages;
  for (int i = 0; i < kPartitionPages; ++i) {
    tile.blocks[i] = first + i < pages ? own(first + i) : later(first + i - pages);
    tile.blocks[kPartitionPages + i] =
        is_last ? later(i > skipped ? i - skipped : 0) : own(first + kPartitionPages + i);
  }
}

// Rows row .. row + rows, of which the first is the at-th of its block, and partition p.
void attend_tile(const AttentionTask& task, int p, int64_t row, int64_t rows, int64_t at,
                 const Scratch& scratch, Tile& tile) {
  const int head_dim = task.kv.head_dim;
  describe_rows(task, row, rows, p, tile);
  if (tile.seen[0].begin == tile.seen[rows - 1].end) return;  // nobody sees a key
  tile.queries = scratch.queries + at * head_dim;
  tile.query_scales = scratch.query_scales + at;
  bool is_first[kMaxTileRows];
  for (int64_t r = 0; r < rows; ++r) {
    is_first[r] = first_partition_of(task, row + r) == p;
    tile.outputs[r] = is_first[r] ? output_of(task, row + r) : scratch.outputs + r * head_dim;
  }
  partition_tile_of(task.kv.type, int(rows))(tile);
  for (int64_t r = 0; r < rows; ++r) {
    float &max = scratch.maxima[at + r], &sum = scratch.sums[at + r];
    if (is_first[r]) {
      max = tile.maxima[r], sum = tile.sums[r];
    } else if (!tile.seen[r].empty()) {
      merge_row(&max, &sum, output_of(task, row + r), tile.maxima[r], tile.sums[r], tile.outputs[r],
                head_dim);
    }
  }
}

// Rows of one block. A row's first partition writes to the task's output directly.
void attend_block(const AttentionTask& task, const Tiling& tiling, int64_t first_tile, int64_t end_tile,
                  const Scratch& scratch) {
  const int head_dim = task.kv.head_dim;
  const int64_t first_row = tiling.first_row(first_tile), end_row = tiling.first_row(end_tile);
  for (int64_t t = first_tile; t < end_tile; ++t) {
    const int64_t row = tiling.first_row(t);
    pack_queries(task, row, tiling.first_row(t + 1), scratch.queries + (row - first_row) * head_dim,
                 scratch.query_scales + (row - first_row));
  }
  Tile tile = empty_tile(task, scratch);
  const KeyRange seen{first_key(task, token_of(task, first_row)), visible_to(task, end_row - 1)};
  for (int p = seen.begin / kPartitionTokens; p < partitions_of(seen.end); ++p) {
    find_blocks(task, p, seen, tile);
    for (int64_t t = first_tile; t < end_tile; ++t) {
      const int64_t row = tiling.first_row(t), rows = tiling.first_row(t + 1) - row;
      attend_tile(task, p, row, rows, row - first_row, scratch, tile);
    }
  }
  for (int64_t row = first_row; row < end_row; ++row) {
    const int64_t at = row - first_row;
    scale_row(normalizer(task, row, scratch.maxima[at], scratch.sums[at]), output_of(task, row), head_dim);
  }
}

void attention(const AttentionTask& task, void* memory) {
  const Scratch scratch(memory, task.kv.head_dim);
  const Tiling tiling(task);
  for (int64_t tile = 0; tile < tiling.tiles; tile += kBlockTiles) {
    const int64_t end = tile + kBlockTiles < tiling.tiles ? tile + kBlockTiles : tiling.tiles;
    attend_block(task, tiling, tile, end, scratch);
  }
}

void attention_partition(const AttentionTask& task, int p, float* states, void* memory) {
  const int head_dim = task.kv.head_dim;
  const Scratch scratch(memory, head_dim);
  const Tiling tiling(task);
  Tile tile = empty_tile(task, scratch);
  const int most_keys = visible_keys(task, task.query_tokens - 1), end = (p + 1) * kPartitionTokens;
  find_blocks(task, p, {first_key(task, 0), most_keys < end ? most_keys : end}, tile);
  for (int64_t t = 0; t < tiling.tiles; ++t) {
    const int64_t row = tiling.first_row(t), rows = tiling.first_row(t + 1) - row;
    pack_queries(task, row, row + rows, scratch.queries, scratch.query_scales);
    float* const tile_states = states + row * state_floats(head_dim);
    describe_rows(task, row, rows, p, tile);
    for (int64_t r = 0; r < rows; ++r)
      tile.outputs[r] = tile_states + r * state_floats(head_dim) + kStateOutput;
    partition_tile_of(task.kv.type, int(rows))(tile);
    for (int64_t r = 0; r < rows; ++r) {
      float* const state = tile_states + r * state_floats(head_dim);
      state[kStateMax] = tile.seen[r].empty() ? -std::numeric_limits<float>::infinity() : tile.maxima[r];
      state[kStateSum] = tile.sums[r];
    }
  }
}

void attention_merge(const AttentionTask& task, const float* states, int count) {
  const int head_dim = task.kv.head_dim, first = first_partition(task);
  const Tiling tiling(task);
  for (int64_t row = 0; row < tiling.rows; ++row) {
    const int own = first_partition_of(task, row), own_end = partitions_of(visible_to(task, row));
    const float* part = states + ((own - first) * tiling.rows + row) * state_floats(head_dim);
    float* output = output_of(task, row);
    float max = part[kStateMax], sum = part[kStateSum];
    std::memcpy(output, part + kStateOutput, size_t(head_dim) * sizeof(float));
    for (int p = own + 1; p < first + count && p < own_end; ++p) {
      part += tiling.rows * state_floats(head_dim);
      merge_row(&max, &sum, output, part[kStateMax], part[kStateSum], part + kStateOutput, head_dim);
    }
    scale_row(normalizer(task, row, max, sum), output, head_dim);
  }
}
