// Moves a page's keys to later positions: what an endless chat does with its first tokens when others are
// dropped.
//
// A rotary key at position p + n is the one at p, rotated by n more; values have no position. So a page of
// kept tokens is copied once, and its keys are turned from the original's each time: whatever was rounded, it
// was rounded once more, not once more each time.
#pragma once

#include <cstdint>

#include "model/config.h"
#include "model/kv_cache.h"
#include "model/rope_angles.h"

namespace redoubt {

// Makes page `target` a copy of page `source` whose keys stand `positions` later. Throws
// std::invalid_argument for a page that is not there, or where frequencies depend on the position.
void copy_page_turned(KvCache& cache, const ModelConfig& config, const RopeAngles& angles, int32_t source,
                      int32_t target, int32_t positions);

}  // namespace redoubt
