// The choice of codes, written once for all tiers as loops over lanes, which the compiler turns into vectors:
// lanes are rows, or rows times candidates, and every operation is one of IEEE's, so the tiers agree bit for
// bit. Included inside a tier's namespace and target region, after all other headers.

// Rows that are rounded side by side.
inline constexpr int kRows = 16;
// Candidates that are tried side by side: one input's sum waits for the one before it.
inline constexpr int kTogether = 3;

template <int kLanes>
struct Rounded {
  float level[kLanes];
  float code[kLanes];
};

template <int kLanes>
REDOUBT_INLINE void nearest(const LevelGrid& grid, const float* x, Rounded<kLanes>& to) {
  if (grid.is_even) {
    constexpr float kMagic = 12582912.0f;  // 1.5 * 2^23: adding and taking it away rounds to even
    const float lowest = grid.levels[0], highest = grid.levels[kLevels - 1];
    for (int l = 0; l < kLanes; ++l) {
      float level = x[l] < lowest ? lowest : x[l];
      level = level > highest ? highest : level;
      level = (level + kMagic) - kMagic;
      to.level[l] = level;
      to.code[l] = level - lowest;
    }
    return;
  }
  for (int l = 0; l < kLanes; ++l) to.level[l] = grid.levels[0], to.code[l] = 0.0f;
  for (int j = 1; j < kLevels; ++j) {
    const float middle = grid.middles[j - 1], level = grid.levels[j], code = float(j);
    for (int l = 0; l < kLanes; ++l) to.level[l] = x[l] >= middle ? level : to.level[l];
    for (int l = 0; l < kLanes; ++l) to.code[l] = x[l] >= middle ? code : to.code[l];
  }
}

// Of a vector's worth of rows and some candidates.
template <int kLanes>
struct Scaling {
  float scale[kLanes], minimum[kLanes], inverse[kLanes];

  REDOUBT_INLINE void set_inverse() {
    for (int l = 0; l < kLanes; ++l) inverse[l] = scale[l] != 0.0f ? 1.0f / scale[l] : 0.0f;
  }
};

// Rounds the group's inputs one after the other. take(k, level and code, error): what became of input k.
// Returns the error that later inputs can't make up for.
template <int kLanes, typename Take>
REDOUBT_INLINE void round_inputs(const GroupRounding& task, const float (*weights)[kRows],
                                 const float (*wanted)[kRows], const Scaling<kLanes>& by,
                                 float (*errors)[kLanes], float* total, const Take& take) {
  for (int l = 0; l < kLanes; ++l) total[l] = 0.0f;
  for (int k = 0; k < task.inputs; ++k) {
    float moved[kLanes], x[kLanes];
    for (int l = 0; l < kLanes; ++l) moved[l] = wanted[k][l % kRows];
    const float* const feedback = task.feedback + int64_t(k) * task.inputs;
    for (int i = 0; i < k; ++i) {
      const float part = feedback[i];
      for (int l = 0; l < kLanes; ++l) moved[l] = __builtin_fmaf(part, errors[i][l], moved[l]);
    }
    for (int l = 0; l < kLanes; ++l) x[l] = (moved[l] - by.minimum[l]) * by.inverse[l];
    Rounded<kLanes> rounded;
    nearest<kLanes>(task.grid, x, rounded);
    const float power = task.power[k];
    for (int l = 0; l < kLanes; ++l) {
      const float value = __builtin_fmaf(by.scale[l], rounded.level[l], by.minimum[l]);
      const float missed = moved[l] - value;
      errors[k][l] = weights[k][l % kRows] - value;
      total[l] = __builtin_fmaf(power * missed, missed, total[l]);
    }
    take(k, rounded);
  }
}

// The rows from `begin` on, at most kRows; the lanes of missing rows are zeros.
REDOUBT_INLINE void load_rows(const float* from, int64_t rows, int inputs, int64_t begin, int count,
                              float (*to)[kRows]) {
  for (int k = 0; k < inputs; ++k) {
    for (int l = 0; l < kRows; ++l) to[k][l] = l < count ? from[k * rows + begin + l] : 0.0f;
  }
}

void round_rows_of_group(const GroupRounding& task, int64_t begin, int count) {
  static_assert(2 * kRows + kTogether * kRows <= kRoundingScratchFloats);
  auto* const weights = reinterpret_cast<float (*)[kRows]>(task.scratch);
  float (*const wanted)[kRows] = weights + task.inputs;
  auto* const errors = reinterpret_cast<float (*)[kTogether * kRows]>(wanted + task.inputs);
  load_rows(task.weights, task.rows, task.inputs, begin, count, weights);
  load_rows(task.wanted, task.rows, task.inputs, begin, count, wanted);
  alignas(64) float least[kRows];
  int32_t best[kRows];
  for (int l = 0; l < kRows; ++l) least[l] = __builtin_inff(), best[l] = 0;
  for (int first = 0; first < task.candidates; first += kTogether) {
    Scaling<kTogether * kRows> by;
    for (int l = 0; l < kTogether * kRows; ++l) {
      // The last one again where there are no more: it does not win over itself.
      const int candidate = first + l / kRows < task.candidates ? first + l / kRows : task.candidates - 1;
      const int64_t at = candidate * task.rows + begin + l % kRows;
      by.scale[l] = l % kRows < count ? task.scales[at] : 0.0f;
      by.minimum[l] = l % kRows < count ? task.minima[at] : 0.0f;
    }
    by.set_inverse();
    alignas(64) float total[kTogether * kRows];
    round_inputs<kTogether * kRows>(task, weights, wanted, by, errors, total, [](int, const auto&) {});
    for (int l = 0; l < kTogether * kRows; ++l) {
      if (total[l] < least[l % kRows]) least[l % kRows] = total[l], best[l % kRows] = first + l / kRows;
    }
  }
  Scaling<kRows> by;
  for (int l = 0; l < kRows; ++l) {
    const int64_t at = best[l] * task.rows + begin + l;
    by.scale[l] = l < count ? task.scales[at] : 0.0f;
    by.minimum[l] = l < count ? task.minima[at] : 0.0f;
  }
  by.set_inverse();
  auto* const chosen = reinterpret_cast<float (*)[kRows]>(errors);
  float total[kRows];
  round_inputs<kRows>(task, weights, wanted, by, chosen, total, [&](int k, const Rounded<kRows>& rounded) {
    for (int l = 0; l < count; ++l) task.codes[k * task.rows + begin + l] = uint8_t(rounded.code[l]);
  });
  for (int k = 0; k < task.inputs; ++k) {
    for (int l = 0; l < count; ++l) task.errors[k * task.rows + begin + l] = chosen[k][l];
  }
  for (int l = 0; l < count; ++l) task.best[begin + l] = best[l];
}

void round_group(const GroupRounding& task) {
  for (int64_t begin = 0; begin < task.rows; begin += kRows) {
    round_rows_of_group(task, begin, int(task.rows - begin < kRows ? task.rows - begin : kRows));
  }
}

void descend_rows_of_group(const GroupDescent& task, int64_t begin, int count) {
  auto* const pull = reinterpret_cast<float (*)[kRows]>(task.scratch);
  load_rows(task.pull, task.rows, task.inputs, begin, count, pull);
  Scaling<kRows> by;
  for (int l = 0; l < kRows; ++l) {
    by.scale[l] = l < count ? task.scales[begin + l] : 0.0f;
    by.minimum[l] = l < count ? task.minima[begin + l] : 0.0f;
  }
  by.set_inverse();
  for (int k = 0; k < task.inputs; ++k) {
    const float* const own = task.own + int64_t(k) * task.inputs;
    uint8_t* const codes = task.codes + k * task.rows + begin;
    float before[kRows], x[kRows], change[kRows];
    for (int l = 0; l < kRows; ++l) {
      const float level = l < count ? task.grid.levels[codes[l]] : 0.0f;
      before[l] = __builtin_fmaf(by.scale[l], level, by.minimum[l]);
      x[l] = (before[l] + pull[k][l] / own[k] - by.minimum[l]) * by.inverse[l];
    }
    Rounded<kRows> rounded;
    nearest<kRows>(task.grid, x, rounded);
    for (int l = 0; l < kRows; ++l) {
      change[l] = __builtin_fmaf(by.scale[l], rounded.level[l], by.minimum[l]) - before[l];
    }
    for (int l = 0; l < count; ++l) {
      codes[l] = uint8_t(rounded.code[l]);
      task.changes[k * task.rows + begin + l] = change[l];
    }
    for (int j = k + 1; j < task.inputs; ++j) {
      const float part = -own[j];
      for (int l = 0; l < kRows; ++l) pull[j][l] = __builtin_fmaf(part, change[l], pull[j][l]);
    }
  }
}

void descend_group(const GroupDescent& task) {
  for (int64_t begin = 0; begin < task.rows; begin += kRows) {
    descend_rows_of_group(task, begin, int(task.rows - begin < kRows ? task.rows - begin : kRows));
  }
}
