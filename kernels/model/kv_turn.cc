// Turns keys with scalar code: it is done once in hundreds of tokens.
#include "model/kv_turn.h"

#include <stdexcept>
#include <vector>

#include "ops/scalar.h"

namespace redoubt {

void copy_page_turned(KvCache& cache, const ModelConfig& config, const std::vector<RopeAngles>& angles,
                      int32_t source, int32_t target, int32_t positions) {
  if (cache.groups().count() > 1) {
    throw std::invalid_argument("page groups: a key can't be moved where layers have pages of their own");
  }
  if (config.learned_positions) {
    throw std::invalid_argument("positions: learned ones are in keys and values, which can't be moved");
  }
  std::vector<std::vector<float>> turns;
  for (const RopeAngles& each : angles) {
    if (!each.is_relative()) {
      throw std::invalid_argument("positions: with dynamic RoPE a key can't be moved to another position");
    }
    turns.emplace_back(size_t(each.rotary_dim()));
    each.fill_turn(positions, turns.back().data());
  }
  cache.copy_page(source, target);
  float key[kMaxHeadDim];
  for (int32_t layer = 0; layer < config.computed_layers(); ++layer) {
    const int32_t rope = config.layer(layer).attention.rope;
    if (rope < 0 || config.layer(layer).attention.keys_of >= 0) continue;
    const std::vector<float>& turn = turns[size_t(rope)];
    for (int32_t head = 0; head < config.shape(layer).kv_heads; ++head) {
      const KvView from = cache.view(layer, head, &source), to = cache.view(layer, head, &target);
      for (int32_t token = 0; token < kPageTokens; ++token) {
        scalar::read_key(from, token, key);
        scalar::rope(key, turn.data(), int(turn.size()));
        scalar::write_key(to, token, key);
      }
    }
  }
}

}  // namespace redoubt
