// Integer weights times int8 activations with AVX2 or with AVX-512 without VNNI: the loops over rows and
// tiles. The kernels for a few rows are in linear/int8_nibbles-inl.h and linear/int8_bytes-inl.h.
//
// Rows are taken in chunks. A chunk's inputs are first copied into the order in which the passes read them,
// so that a pass reads one stream; in place, rows are often a power of two apart and would displace each
// other in the first-level cache. All passes of a chunk multiply one part of a tile before the next part, so
// that its weights stay in the first-level cache (int8's, which are twice as large, in the second-level
// cache). Each chunk reads the weights of all its tiles again. So many inputs are copied at a time that a
// chunk fits a small second-level cache; where those are not all inputs, the sums of several tiles are kept
// until the next inputs have been copied.
//
// Included inside the tier's namespace and target region, after simd/vector_*-inl.h.

constexpr int kFewestInputs = 32;   // of a group, and of inputs that share a start
constexpr int kRangeInputs = 2048;  // copied at a time for a full chunk; a multiple of every group
constexpr int kRangeGroups = kRangeInputs / kFewestInputs;
constexpr int kChunkRows = 64;  // with inputs of one byte; half as many with two
constexpr int kBlockTiles = 8;
constexpr int kPartInputs = 1024;  // of a part of a tile

// Some groups of a chunk's rows in the layout of Pass, one pass after the other. Takes a quarter of a
// megabyte of stack.
struct Chunk {
  alignas(64) int8_t inputs[kRangeInputs * kChunkRows];           // as IntegerKernels::fill orders them
  alignas(64) int32_t starts[kRangeGroups * kChunkRows];          // likewise
  alignas(64) float scales[kRangeGroups * kChunkRows];            // [group][row]
  alignas(64) float offsets[kRangeGroups * kChunkRows];           // [group][row], asym_int4
  alignas(64) float sums[kBlockTiles][kChunkRows][kTileOutputs];  // [tile][row]
};

// A matrix times a chunk of rows.
class ChunkPasses {
 public:
  ChunkPasses(const PackedMatrix& w, const QuantizedRows& x, const IntegerKernels& kernels, int first_row,
              int rows, Chunk& chunk)
      : w_(w), x_(x), kernels_(kernels), first_row_(first_row), rows_(rows), chunk_(chunk) {}

  void multiply(const LinearOutput& y, int tile_begin, int tile_end) {
    const int groups = w_.cols / w_.group;
    const int most = kRangeInputs * kChunkRows / (rows_ * kernels_.input_bytes) / w_.group;
    const bool at_once = groups <= most;
    if (at_once) fill(0, groups);
    const int block = at_once ? 1 : kBlockTiles;
    for (int begin = tile_begin; begin < tile_end; begin += block) {
      const int end = std::min(begin + block, tile_end);
      for (int first = 0; first < groups; first += most) {
        if (!at_once) fill(first, std::min(most, groups - first));
        for (int tile = begin; tile < end; ++tile) multiply_tile(y, tile, first, chunk_.sums[tile - begin]);
      }
    }
  }

 private:
  // Copies groups [first, first + groups) of all rows.
  void fill(int first, int groups) {
    range_groups_ = groups;
    in_passes(rows_, kernels_.most_rows, [&](int begin, int end) {
      const int row = first_row_ + begin, rows = end - begin, before = begin * groups;
      kernels_.fill(x_, row, rows, first, groups, inputs_after(before), starts_after(before));
      for (int r = 0; r < rows; ++r) {
        const int64_t from = int64_t(row + r) * (x_.cols / x_.group) + first;
        for (int j = 0; j < groups; ++j) {
          chunk_.scales[before + j * rows + r] = x_.scales[from + j];
        }
        for (int j = 0; w_.type == WeightType::kAsymInt4 && j < groups; ++j) {
          chunk_.offsets[before + j * rows + r] = x_.offsets[from + j];
        }
      }
    });
  }

  // The inputs and starts that follow those of the first `row_groups` pairs of row and group.
  int8_t* inputs_after(int row_groups) {
    return chunk_.inputs + row_groups * w_.group * kernels_.input_bytes;
  }
  int32_t* starts_after(int row_groups) { return chunk_.starts + row_groups * kernels_.starts_per_group; }

  // Adds the products of the copied groups, the first of which is `first`, to a tile's sums. Writes the sums
  // to y after the matrix' last group.
  void multiply_tile(const LinearOutput& y, int tile, int first, float (*sums)[kTileOutputs]) {
    const int most = rows_ > kernels_.most_rows ? kPartInputs / w_.group : range_groups_;
    in_passes(range_groups_, most, [&](int from, int from_end) {
      in_passes(rows_, kernels_.most_rows, [&](int begin, int end) {
        const int count = end - begin;
        for (int r = begin; first + from == 0 && r < end; ++r) std::fill_n(sums[r], kTileOutputs, 0.0f);
        const int before = begin * range_groups_ + from * count;
        kernels_.by_rows[count - 1]({.weights = w_.tile(tile) + w_.block_bytes() * size_t(first + from),
                                     .inputs = inputs_after(before),
                                     .starts = starts_after(before),
                                     .x_scales = chunk_.scales + before,
                                     .x_offsets = chunk_.offsets + before,
                                     .sums = sums + begin,
                                     .groups = from_end - from,
                                     .matrix = &w_,
                                     .ahead = first_row_ + begin == 0});
        if (first + from_end == w_.blocks()) write(y, tile, begin, end, sums);
      });
    });
  }

  // Writes the sums of rows [begin, end).
  void write(const LinearOutput& y, int tile, int begin, int end, const float (*sums)[kTileOutputs]) const {
    for (int r = begin; r < end; ++r) {
#pragma GCC unroll 4
      for (int at = 0; at < kTileOutputs; at += kLanes) {
        write_outputs(w_, y, first_row_ + r, tile * kTileOutputs + at, load(sums[r] + at));
      }
    }
  }

  const PackedMatrix& w_;
  const QuantizedRows& x_;
  const IntegerKernels& kernels_;
  const int first_row_, rows_;
  int range_groups_ = 0;  // that are copied
  Chunk& chunk_;
};

IntegerKernels kernels_for(const PackedMatrix& w, const QuantizedRows& x) {
  switch (w.type) {
    case WeightType::kInt8:
    case WeightType::kLut4:
      return linear_bytes_kernels(w.type);
    case WeightType::kSymInt4:
    case WeightType::kAsymInt4:
      return linear_int4_kernels(w.type, x.low_values == nullptr ? 1 : 2, w.group);
    case WeightType::kFp16:
    case WeightType::kBf16:
    case WeightType::kFp32:
      break;
  }
  std::abort();
}

void multiply_in_chunks(const PackedMatrix& w, const QuantizedRows& x, const LinearOutput& y, int tile_begin,
                        int tile_end) {
  const IntegerKernels kernels = kernels_for(w, x);
  Chunk chunk;
  in_passes(x.rows, kChunkRows / kernels.input_bytes, [&](int begin, int end) {
    ChunkPasses(w, x, kernels, begin, end - begin, chunk).multiply(y, tile_begin, tile_end);
  });
}
