#include "blockmgr/eviction/lru_stack.hpp"

#include <algorithm>

namespace cairn {

LruStack::LruStack(std::uint32_t max_blocks)
    : max_blocks_(max_blocks),
      key_hashes_(std::size_t{max_blocks} + max_blocks / 2 + 1),
      weights_(key_hashes_.size()),
      tree_(key_hashes_.size() + 1),
      places_(max_blocks, HashAt{key_hashes_.data()}) {}

std::optional<std::uint64_t> LruStack::weight_above(std::uint64_t key_hash) const {
  const HashedPlace* known = places_.find(key_hash);
  if (known == nullptr) return std::nullopt;
  std::uint64_t up_to_it = 0;
  for (std::size_t at = known->number + 1; at > 0; at -= at & -at) up_to_it += tree_[at];
  return total_weight_ - up_to_it;
}

void LruStack::use(std::uint64_t key_hash, std::uint32_t weight) {
  if (top_ == key_hashes_.size()) close_up();
  const HashedPlace* known = places_.find(key_hash);
  if (known != nullptr) {
    take_out(known->number);
  } else if (places_.size() == max_blocks_) {
    give_up_oldest();
  }
  key_hashes_[top_] = key_hash;
  weights_[top_] = weight;
  if (known != nullptr) {
    known->number = top_;
  } else {
    places_.insert(top_);
  }
  add_weight(top_, weight);
  total_weight_ += weight;
  ++top_;
}

void LruStack::take_out(std::uint32_t place) {
  add_weight(place, -std::int64_t{weights_[place]});
  total_weight_ -= weights_[place];
  weights_[place] = 0;
}

void LruStack::give_up_oldest() {
  while (weights_[bottom_] == 0) ++bottom_;
  places_.erase(key_hashes_[bottom_]);
  take_out(bottom_);
}

// Closes the holes, at least a third of the places. So it runs again only after that many uses.
void LruStack::close_up() {
  std::uint32_t to = 0;
  for (std::uint32_t from = bottom_; from < top_; ++from) {
    if (weights_[from] == 0) continue;
    // Before the hash moves, because the index reads it.
    places_.find(key_hashes_[from])->number = to;
    key_hashes_[to] = key_hashes_[from];
    weights_[to] = weights_[from];
    ++to;
  }
  top_ = to;
  bottom_ = 0;
  std::ranges::fill(tree_, 0U);
  for (std::uint32_t place = 0; place < top_; ++place) add_weight(place, weights_[place]);
}

void LruStack::add_weight(std::uint32_t place, std::int64_t weight) {
  for (std::size_t at = place + 1; at < tree_.size(); at += at & -at) {
    tree_[at] += static_cast<std::uint32_t>(weight);
  }
}

std::uint64_t LruStack::memory_bytes() const {
  return sizeof(*this) + key_hashes_.size() * sizeof(std::uint64_t) +
         (weights_.size() + tree_.size()) * sizeof(std::uint32_t) + places_.memory_bytes();
}

void LruCaches::request(std::span<const std::uint64_t> blocks) {
  deepest_.clear();
  for (const std::uint64_t block : blocks) {
    const auto above = stack_.weight_above(block);
    if (!above) break;
    deepest_.push_back(std::max(*above, deepest_.empty() ? 0 : deepest_.back()));
  }
  // The first block of a prefix is evicted last.
  for (auto block = blocks.rbegin(); block != blocks.rend(); ++block) stack_.use(*block, 1);
}

std::uint64_t LruCaches::hits(std::uint32_t capacity_blocks) const {
  return static_cast<std::uint64_t>(std::ranges::lower_bound(deepest_, capacity_blocks) -
                                    deepest_.begin());
}

std::uint64_t LruCaches::memory_bytes() const {
  return stack_.memory_bytes() + deepest_.capacity() * sizeof(std::uint64_t);
}

}  // namespace cairn
