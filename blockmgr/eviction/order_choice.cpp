#include "blockmgr/eviction/order_choice.hpp"

#include <algorithm>
#include <cmath>

namespace cairn {

void OrderChoice::add(const Request& request) {
  const double fade = std::exp(-request.asked_blocks / window_blocks_);
  more_hits_ = more_hits_ * fade + request.more_hits;
  asked_blocks_ = asked_blocks_ * fade + request.asked_blocks;
  // A few requests are no window.
  const double gain = more_hits_ / std::max(asked_blocks_, window_blocks_);
  const bool changes = follows_lru_ ? gain > kBetter : gain < -kWorse;
  if (!changes) return;
  follows_lru_ = !follows_lru_;
  ++changes_;
}

}  // namespace cairn
