#include "blockmgr/eviction/shadow_room.hpp"

#include <bit>
#include <limits>

#include "blockmgr/eviction/lru_order.hpp"

namespace cairn {

// Nodes must not move: the index reads their hashes.
std::vector<ShadowRoom::Node> ShadowRoom::reserved(std::uint32_t nodes) {
  std::vector<Node> room;
  room.reserve(nodes);
  return room;
}

ShadowRoom::ShadowRoom(const EvictionPolicy& policy, EvictionKind eviction, const Size& size)
    : policy_(&policy),
      is_lru_(eviction == EvictionKind::lru),
      size_(size),
      nodes_(reserved(size.capacity_blocks)),
      index_(size.capacity_blocks, HashAt{nodes_.data()}) {}

void ShadowRoom::begin(RequestNumber number) {
  request_ = number;
  has_chosen_ = false;
  held_.clear();
  last_held_ = end_ = kNoBlock;
  hits_ = 0;
  is_prefix_ = true;
  is_full_ = false;
}

const BlockHistory* ShadowRoom::ask(std::uint64_t hash) {
  held_.push_back(kNoBlock);
  is_asked_ = is_sampled(hash, size_.one_in);
  if (!may_keep()) return nullptr;
  const HashedPlace* found = index_.find(hash);
  if (found == nullptr) {
    is_prefix_ = false;
    return nullptr;
  }
  held_.back() = found->number;
  if (is_prefix_) ++hits_;
  pin(found->number);
  return &nodes_[found->number].history;
}

std::optional<ShadowRoom::Gone> ShadowRoom::make_room() {
  const bool has_room = first_free_ != kNoBlock || nodes_.size() < size_.capacity_blocks;
  if (!may_keep() || held_.back() != kNoBlock || has_room) return std::nullopt;
  const std::uint32_t block = victim();
  if (block == kNoBlock) {
    is_full_ = true;
    return std::nullopt;
  }
  pin(block);
  Node& node = nodes_[block];
  index_.erase(node.hash);
  if (node.parent != kNoBlock) {
    Node& parent = nodes_[node.parent];
    --parent.children;
    if (may_go(parent) && parent.place == static_cast<unsigned>(Place::parked)) {
      relist(node.parent);
    }
  }
  node.next = first_free_;
  first_free_ = block;
  return Gone{.hash = node.hash, .history = node.history};
}

void ShadowRoom::keep(std::uint64_t hash, const BlockHistory& history) {
  if (!may_keep()) return;
  std::uint32_t& held = held_.back();
  if (held == kNoBlock) {
    held = first_free_;
    if (held != kNoBlock) {
      first_free_ = nodes_[held].next;
    } else {
      held = static_cast<std::uint32_t>(nodes_.size());
      nodes_.emplace_back();
    }
    nodes_[held] = {.hash = hash, .history = {}, .parent = last_held_};
    index_.insert(held);
    if (last_held_ != kNoBlock) ++nodes_[last_held_].children;
  }
  nodes_[held].history = history;
  last_held_ = held;
}

bool ShadowRoom::is_end(std::size_t number) {
  const std::uint32_t block = held_[number];
  const std::uint32_t followers = end_ != kNoBlock && nodes_[end_].parent == block ? 1 : 0;
  if (nodes_[block].children != followers) return false;
  end_ = block;
  return true;
}

void ShadowRoom::list(std::size_t number, const BlockHistory& history) {
  nodes_[held_[number]].history = history;
  insert_before(held_[number], kNoBlock);
}

void ShadowRoom::note_unkept(std::uint64_t hash, const BlockHistory& history) {
  if (!is_full_) return;
  const HashedPlace* found = index_.find(hash);
  if (found == nullptr) return;
  BlockHistory& there = nodes_[found->number].history;
  const std::uint8_t list = there.list;  // which it is in
  there = history;
  there.list = list & 63U;
}

void ShadowRoom::insert_before(std::uint32_t block, std::uint32_t next) {
  Node& node = nodes_[block];
  lists_[node.history.list].insert_before(nodes_, block, next);
  non_empty_ |= std::uint64_t{1} << node.history.list;
  node.place = static_cast<unsigned>(Place::listed);
}

void ShadowRoom::pin(std::uint32_t block) {
  Node& node = nodes_[block];
  if (node.place == static_cast<unsigned>(Place::listed)) {
    LinkedBlocks& from = lists_[node.history.list];
    from.remove(nodes_, block);
    if (from.empty()) non_empty_ &= ~(std::uint64_t{1} << node.history.list);
  }
  node.place = static_cast<unsigned>(Place::none);
}

// A protected block stays in its list until its turn comes, and is parked then.
bool ShadowRoom::protect(std::uint64_t hash) {
  const HashedPlace* found = index_.find(hash);
  if (found == nullptr) return false;
  nodes_[found->number].is_protected = 1;
  return true;
}

void ShadowRoom::unprotect(std::uint64_t hash) {
  const HashedPlace* found = index_.find(hash);
  if (found == nullptr) return;
  Node& node = nodes_[found->number];
  node.is_protected = 0;
  if (may_go(node) && node.place == static_cast<unsigned>(Place::parked)) relist(found->number);
}

void ShadowRoom::relist(std::uint32_t block) {
  const Node& node = nodes_[block];
  // By last use: before blocks used later, and after the rest of its request, which was listed
  // before it.
  std::uint32_t next = lists_[node.history.list].first;
  while (next != kNoBlock &&
         static_cast<std::int32_t>(nodes_[next].history.request - node.history.request) <= 0) {
    next = nodes_[next].next;
  }
  insert_before(block, next);
}

std::uint32_t ShadowRoom::first_leaf(std::uint32_t list) {
  while (!lists_[list].empty()) {
    const std::uint32_t block = lists_[list].first;
    if (may_go(nodes_[block])) return block;
    pin(block);
    nodes_[block].place = static_cast<unsigned>(Place::parked);
  }
  return kNoBlock;
}

std::uint32_t ShadowRoom::victim() {
  if (has_chosen_ && !lists_[chosen_list_].empty()) {
    const std::uint32_t block = first_leaf(chosen_list_);
    if (block != kNoBlock && nodes_[block].history.request == chosen_request_) return block;
  }
  std::uint32_t best = kNoBlock;
  float least = std::numeric_limits<float>::infinity();
  const std::uint32_t expected = is_lru_ ? expected_blocks(lists_) : 0;
  for (std::uint64_t left = non_empty_; left != 0; left &= left - 1) {
    const auto list = static_cast<std::uint32_t>(std::countr_zero(left));
    const std::uint32_t block = first_leaf(list);
    if (block == kNoBlock) continue;
    const float worth = this->worth(block, expected);
    if (worth >= least) continue;
    least = worth;
    best = block;
    chosen_list_ = list;
  }
  has_chosen_ = best != kNoBlock;
  if (has_chosen_) chosen_request_ = nodes_[best].history.request;
  return best;
}

float ShadowRoom::worth(std::uint32_t block, std::uint32_t expected) const {
  const BlockHistory& history = nodes_[block].history;
  if (!follows_lru_) return policy_->worth(history, expected);
  return -static_cast<float>(request_ - history.request);
}

}  // namespace cairn
