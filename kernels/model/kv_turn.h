// Moves a page's keys to later positions, as an endless chat does with its first tokens when it drops later
// ones.
//
// A rotary key at position p + n is the key at p, rotated by n more; values have no position. Each time the
// keys are turned from the original page, not from the last copy, so that rounding errors do not add up.
#pragma once

#include <cstdint>
#include <vector>

#include "model/config.h"
#include "model/kv_cache.h"
#include "model/rope_angles.h"

namespace redoubt {

// Makes page `target` a copy of page `source` whose keys stand `positions` later. Throws
// std::invalid_argument for a page that is not there, or where frequencies depend on the position
// or layers are in several page groups.
void copy_page_turned(KvCache& cache, const ModelConfig& config, const std::vector<RopeAngles>& angles,
                      int32_t source, int32_t target, int32_t positions);

}  // namespace redoubt
