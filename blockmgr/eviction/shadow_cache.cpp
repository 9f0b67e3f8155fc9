#include "blockmgr/eviction/shadow_cache.hpp"

#include <bit>
#include <limits>

#include "blockmgr/eviction/lru_order.hpp"

namespace cairn {

// They stay where they are: the index looks at their hashes.
std::vector<ShadowCache::Node> ShadowCache::reserved(std::uint32_t nodes) {
  std::vector<Node> room;
  room.reserve(nodes);
  return room;
}

ShadowCache::ShadowCache(const Options& options)
    : options_(options),
      policy_(make_eviction_policy({.eviction = options.eviction,
                                    .capacity_blocks = options.model_of_blocks != 0
                                                           ? options.model_of_blocks
                                                           : options.capacity_blocks,
                                    .max_requests = options.max_requests})),
      ghosts_(options.ghost_blocks),
      nodes_(reserved(options.capacity_blocks)),
      index_(options.capacity_blocks, HashAt{nodes_.data()}) {}

std::uint32_t ShadowCache::request(const ShadowRequest& request) {
  const auto told = static_cast<std::uint32_t>(request.blocks.size());
  const RequestNumber number = policy_->begin({.blocks = request.sample ? request.asked : told,
                                               .unix_ms = request.unix_ms,
                                               .sample = request.sample});
  has_chosen_ = false;
  last_request_ = number;
  pinned_.clear();
  std::uint32_t hits = 0;
  std::uint32_t parent = kNoBlock;
  bool is_prefix = true;
  for (const std::uint64_t hash : request.blocks) {
    std::uint32_t block = kNoBlock;
    if (const HashedPlace* found = index_.find(hash); found != nullptr) {
      block = found->number;
      if (is_prefix) ++hits;
      pin(block);
    } else {
      is_prefix = false;
      block = store(hash, parent);
      if (block == kNoBlock) break;
    }
    Node& node = nodes_[block];
    if (policy_->touched(node.history, number)) node.history.is_hub = node.children >= kHubChildren;
    pinned_.push_back(block);
    parent = block;
  }
  unknown_blocks_ = policy_->ended(number, request.end);
  // What is used late or never are only blocks of its end that nothing else follows.
  std::uint32_t own = kNoBlock;
  for (auto block = pinned_.rbegin(); block != pinned_.rend(); ++block) {
    const Node& node = nodes_[*block];
    const std::uint32_t followers = own != kNoBlock && nodes_[own].parent == *block ? 1 : 0;
    const bool is_own = node.children == followers;
    if (is_own) own = *block;
    const bool is_told = is_own || expected_within_ms(request.end.next_use) > 0;
    list(*block, is_told ? request.end.next_use : NextUse::unknown);
  }
  return hits;
}

void ShadowCache::pin(std::uint32_t block) {
  Node& node = nodes_[block];
  if (node.place == static_cast<unsigned>(Place::listed)) {
    LinkedBlocks& from = lists_[node.history.list];
    from.remove(nodes_, block);
    if (from.empty()) non_empty_ &= ~(std::uint64_t{1} << node.history.list);
  }
  node.place = static_cast<unsigned>(Place::none);
}

std::uint32_t ShadowCache::store(std::uint64_t hash, std::uint32_t parent) {
  std::uint32_t block = first_free_;
  if (block == kNoBlock && nodes_.size() < options_.capacity_blocks) {
    block = static_cast<std::uint32_t>(nodes_.size());
    nodes_.emplace_back();
  } else {
    if (block == kNoBlock && !evict()) return kNoBlock;
    block = first_free_;
    first_free_ = nodes_[block].next;
  }
  nodes_[block] = {.hash = hash, .history = ghosts_.recall(hash), .parent = parent};
  index_.insert(block);
  if (parent != kNoBlock) ++nodes_[parent].children;
  return block;
}

void ShadowCache::list(std::uint32_t block, NextUse told) {
  Node& node = nodes_[block];
  if (node.place != static_cast<unsigned>(Place::none)) return;  // named twice
  policy_->listed(node.history, told);
  lists_[node.history.list].insert_before(nodes_, block, kNoBlock);
  non_empty_ |= std::uint64_t{1} << node.history.list;
  node.place = static_cast<unsigned>(Place::listed);
}

void ShadowCache::relist(std::uint32_t block) {
  Node& node = nodes_[block];
  // Where its last use puts it: in front of what was used later, and behind the rest of its
  // request, which was listed before it.
  std::uint32_t next = lists_[node.history.list].first;
  while (next != kNoBlock &&
         static_cast<std::int32_t>(nodes_[next].history.request - node.history.request) <= 0) {
    next = nodes_[next].next;
  }
  lists_[node.history.list].insert_before(nodes_, block, next);
  non_empty_ |= std::uint64_t{1} << node.history.list;
  node.place = static_cast<unsigned>(Place::listed);
}

std::uint32_t ShadowCache::first_leaf(std::uint32_t list) {
  while (!lists_[list].empty()) {
    const std::uint32_t block = lists_[list].first;
    if (nodes_[block].children == 0) return block;
    pin(block);
    nodes_[block].place = static_cast<unsigned>(Place::parked);
  }
  return kNoBlock;
}

std::uint32_t ShadowCache::victim() {
  if (has_chosen_ && !lists_[chosen_list_].empty()) {
    const std::uint32_t block = first_leaf(chosen_list_);
    if (block != kNoBlock && nodes_[block].history.request == chosen_request_) return block;
  }
  std::uint32_t best = kNoBlock;
  float least = std::numeric_limits<float>::infinity();
  std::uint32_t expected = 0;
  if (options_.eviction == EvictionKind::lru) expected = expected_blocks(lists_);
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

float ShadowCache::worth(std::uint32_t block, std::uint32_t expected) const {
  const BlockHistory& history = nodes_[block].history;
  if (!follows_lru_) return policy_->worth(history, expected);
  return -static_cast<float>(last_request_ - history.request);
}

bool ShadowCache::evict() {
  const std::uint32_t block = victim();
  if (block == kNoBlock) return false;
  pin(block);
  Node& node = nodes_[block];
  ghosts_.remember(node.hash, node.history);
  index_.erase(node.hash);
  if (node.parent != kNoBlock) {
    Node& parent = nodes_[node.parent];
    if (--parent.children == 0 && parent.place == static_cast<unsigned>(Place::parked)) {
      relist(node.parent);
    }
  }
  node.next = first_free_;
  first_free_ = block;
  return true;
}

std::uint64_t ShadowCache::memory_bytes() const {
  return nodes_.capacity() * sizeof(Node) + ghosts_.memory_bytes() + policy_->memory_bytes() +
         index_.memory_bytes();
}

}  // namespace cairn
