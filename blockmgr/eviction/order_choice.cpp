#include "blockmgr/eviction/order_choice.hpp"

#include <algorithm>
#include <cmath>

namespace cairn {

void OrderChoice::Window::add(double more, double asked) {
  const double fade = std::exp(-asked / blocks);
  more_hits = more_hits * fade + more;
  squares = squares * fade + more * more;
  asked_blocks = asked_blocks * fade + asked;
}

double OrderChoice::Window::gain(double least_blocks) const {
  return more_hits / std::max(asked_blocks, least_blocks);
}

bool OrderChoice::Window::is_no_chance() const {
  return std::abs(more_hits) > kDeviations * std::sqrt(squares);
}

bool OrderChoice::is_worse(const Window& window) const {
  return window.gain(lately_.blocks) < -kWorse && window.is_no_chance();
}

void OrderChoice::add(const Request& request) {
  lately_.add(request.more_hits, request.asked_blocks);
  longer_.add(request.more_hits, request.asked_blocks);
  chosen_.add(request.chosen_more_hits, request.asked_blocks);
  const bool is_better = lately_.gain(lately_.blocks) > kBetter;
  const double chosen = chosen_.gain(chosen_.blocks);
  const bool has_lost = chosen < -kLost && chosen_.is_no_chance();
  const bool may_pay = longer_.gain(lately_.blocks) > 0 || chosen > 0;
  const bool changes = follows_lru_
                           ? is_better && may_pay && chosen > -kRegained
                           : is_worse(lately_) || (is_worse(longer_) && !is_better) || has_lost;
  if (!changes) return;
  follows_lru_ = !follows_lru_;
  ++changes_;
}

}  // namespace cairn
