// Turns keys with scalar code: it is done once in hundreds of tokens.
#include "model/kv_turn.h"

#include <stdexcept>
#include <vector>

#include "ops/scalar.h"

namespace redoubt {

void copy_page_turned(KvCache& cache, const ModelConfig& config, const RopeAngles& angles, int32_t source,
                      int32_t target, int32_t positions) {
  if (!angles.is_relative()) {
    throw std::invalid_argument("positions: with dynamic RoPE a key can't be moved to another position");
  }
  cache.copy_page(source, target);
  std::vector<float> turn(size_t(angles.rotary_dim()));
  angles.fill_turn(positions, turn.data());
  float key[kMaxHeadDim];
  for (int32_t layer = 0; layer < config.layers; ++layer) {
    for (int32_t head = 0; head < config.kv_heads; ++head) {
      const KvView from = cache.view(layer, head, &source), to = cache.view(layer, head, &target);
      for (int32_t token = 0; token < kPageTokens; ++token) {
        scalar::read_key(from, token, key);
        scalar::rope(key, turn.data(), angles.rotary_dim());
        scalar::write_key(to, token, key);
      }
    }
  }
}

}  // namespace redoubt
