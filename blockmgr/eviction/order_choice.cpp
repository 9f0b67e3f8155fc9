#include "blockmgr/eviction/order_choice.hpp"

#include <algorithm>
#include <cmath>

namespace cairn {

void OrderChoice::Window::add(const Request& request) {
  const double fade = std::exp(-request.asked_blocks / blocks);
  more_hits = more_hits * fade + request.more_hits;
  squares = squares * fade + request.more_hits * request.more_hits;
  asked_blocks = asked_blocks * fade + request.asked_blocks;
}

double OrderChoice::gain(const Window& window) const {
  return window.more_hits / std::max(window.asked_blocks, least_blocks_);
}

bool OrderChoice::is_worse(const Window& window) const {
  return gain(window) < -kWorse && window.more_hits < -kDeviations * std::sqrt(window.squares);
}

void OrderChoice::add(const Request& request) {
  lately_.add(request);
  longer_.add(request);
  const bool is_better = gain(lately_) > kBetter;
  const bool changes = follows_lru_ ? is_better && gain(longer_) > 0
                                    : is_worse(lately_) || (is_worse(longer_) && !is_better);
  if (!changes) return;
  follows_lru_ = !follows_lru_;
  ++changes_;
}

}  // namespace cairn
