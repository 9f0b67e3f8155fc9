#include "blockmgr/eviction/shadow_groups.hpp"

#include <algorithm>
#include <bit>
#include <limits>
#include <utility>

namespace cairn {
ShadowGroups::ShadowGroups(Options options)
    : options_(std::move(options)),
      use_(options_.block_tokens, options_.groups),
      policy_(make_eviction_policy(
          {.eviction = options_.eviction, .capacity_blocks = options_.policy_blocks})),
      ghosts_(options_.ghost_blocks),
      index_(0, HashAt{&nodes_}),
      pools_(options_.pool_bytes.empty() ? 1 : options_.groups.size()),
      group_bytes_(options_.groups.size()) {
  for (std::size_t i = 0; i < pools_.size(); ++i) {
    pools_[i].lists.resize(EvictionPolicy::kMaxLists);
    pools_[i].capacity_bytes =
        options_.pool_bytes.empty() ? options_.capacity_bytes : options_.pool_bytes[i];
  }
}

std::uint64_t ShadowGroups::block_hash(std::uint64_t key_hash, GroupIndex group) {
  constexpr std::uint64_t kOdd = 0x9E37'79B9'7F4A'7C15;
  return std::rotl(key_hash * kOdd, 32) + group * kOdd;
}

std::uint32_t ShadowGroups::find(std::uint64_t key_hash, GroupIndex group) const {
  const HashedPlace* found = index_.find(block_hash(key_hash, group));
  return found == nullptr ? kNoBlock : found->number;
}

void ShadowGroups::look_at_full_groups(std::span<const std::uint64_t> keys) {
  whole_keys_.assign(options_.groups.size(), 0);
  for (GroupIndex g = 0; g < options_.groups.size(); ++g) {
    if (options_.groups[g].kind != UsedGroup::Kind::full) continue;
    const std::uint32_t per_block = options_.groups[g].keys_per_block;
    for (std::uint32_t end = per_block; end <= keys.size(); end += per_block) {
      if (find(keys[end - 1], g) == kNoBlock) break;
      whole_keys_[g] = end;
    }
  }
}

// REQUIRES: look_at_full_groups() was called.
bool ShadowGroups::full_groups_serve(std::span<const std::uint64_t> keys, std::uint32_t n) const {
  for (GroupIndex g = 0; g < options_.groups.size(); ++g) {
    if (options_.groups[g].kind != UsedGroup::Kind::full || n <= whole_keys_[g]) continue;
    const bool by_part = n - whole_keys_[g] < options_.groups[g].keys_per_block;
    if (!by_part || find(keys[n - 1], g) == kNoBlock) return false;
  }
  return true;
}

// Whether the windows and states serve n keys.
bool ShadowGroups::tails_serve(std::span<const std::uint64_t> keys, std::uint32_t n) const {
  if (use_.storable(n) != n) return false;
  for (GroupIndex g = 0; g < options_.groups.size(); ++g) {
    const UsedGroup& group = options_.groups[g];
    if (group.kind == UsedGroup::Kind::state && find(keys[n - 1], g) == kNoBlock) return false;
    if (group.kind != UsedGroup::Kind::window) continue;
    for (std::uint32_t run = use_.blocks_to(g, n); run-- > use_.first_of_window(g, n);) {
      if (find(keys[(run + 1) * group.keys_per_block - 1], g) == kNoBlock) return false;
    }
  }
  return true;
}

ShadowGroups::Match ShadowGroups::match(std::span<const std::uint64_t> keys) {
  look_at_full_groups(keys);
  auto n = static_cast<std::uint32_t>(keys.size());
  while (n > 0 && !full_groups_serve(keys, n)) --n;
  Match match{.full_matched = n};
  while (n > 0 && !(tails_serve(keys, n) && full_groups_serve(keys, n))) --n;
  match.matched = n;
  return match;
}

std::optional<UsedBlock> ShadowGroups::parent_of(const UsedBlock& used) const {
  const UsedGroup& group = options_.groups[used.group];
  if (group.kind != UsedGroup::Kind::full) {
    if (!use_.parent_group()) return std::nullopt;
    return UsedBlock{.key = used.key, .group = *use_.parent_group()};
  }
  const std::uint32_t first_key = used.key / group.keys_per_block * group.keys_per_block;
  if (first_key == 0) return std::nullopt;
  return UsedBlock{.key = first_key - 1, .group = used.group};
}

ShadowGroups::Match ShadowGroups::request(const ShadowRequest& request) {
  const std::span<const std::uint64_t> keys = request.blocks;
  const auto count = static_cast<std::uint32_t>(keys.size());
  const Match found = match(keys);
  request_ = policy_->begin({.blocks = count, .unix_ms = request.unix_ms});
  for (Pool& pool : pools_) pool.has_chosen = false;
  held_.clear();
  blocks_.clear();
  use_.add_full(found.matched, blocks_);
  use_.add_tail(found.matched, blocks_);
  sort_blocks(blocks_);
  for (const UsedBlock& used : blocks_) {
    const std::uint32_t block = find(keys[used.key], used.group);
    unlist(block);
    hold(block);
  }
  blocks_ = use_.stored({.keys = count,
                         .filled_keys = request.end.full_blocks.value_or(count),
                         .matched = found.matched,
                         .full_matched = found.full_matched},
                        options_.tails);
  make_room(blocks_);
  for (const UsedBlock& used : blocks_) store(used, keys);
  policy_->ended(request_, request.end);
  list_held(request.end.next_use);
  return found;
}

void ShadowGroups::hold(std::uint32_t block) {
  held_.push_back(block);
  Node& node = nodes_[block];
  if (follows_parent(node)) return;
  if (policy_->touched(node.history, request_)) node.history.is_hub = node.children >= kHubChildren;
}

void ShadowGroups::list_held(NextUse next_use) {
  for (std::size_t i = held_.size(); i-- > 0;) {
    Node& node = nodes_[held_[i]];
    if (node.place != Place::none) continue;  // a prompt may name a key twice
    BlockHistory& decides = follows_parent(node) ? nodes_[node.parent].history : node.history;
    policy_->listed(decides, next_use);
    node.history = decides;
    insert_before(held_[i], kNoBlock);
  }
}

void ShadowGroups::store(const UsedBlock& used, std::span<const std::uint64_t> keys) {
  const std::uint64_t hash = keys[used.key];
  if (find(hash, used.group) != kNoBlock) return;
  const std::uint64_t bytes = options_.groups[used.group].block_bytes;
  Pool& pool = pool_of(used.group);
  if (pool.used_bytes + bytes > pool.capacity_bytes) return;
  const auto before = parent_of(used);
  std::uint32_t parent = before ? find(keys[before->key], before->group) : kNoBlock;
  if (before && parent == kNoBlock) return;
  // Pools evict by themselves, so no block of another holds the parent.
  if (has_pools() && before && before->group != used.group) parent = kNoBlock;
  std::uint32_t block = first_free_;
  if (block != kNoBlock) {
    first_free_ = nodes_[block].next;
  } else {
    block = static_cast<std::uint32_t>(nodes_.size());
    nodes_.emplace_back();
  }
  nodes_[block] = {.key_hash = hash,
                   .history = {},
                   .parent = parent,
                   .group = static_cast<std::uint8_t>(used.group)};
  if (!follows_parent(nodes_[block])) {
    nodes_[block].history = ghosts_.recall(block_hash(hash, used.group));
  }
  index_.insert(block);
  if (parent != kNoBlock) ++nodes_[parent].children;
  pool.used_bytes += bytes;
  group_bytes_[used.group] += bytes;
  hold(block);
}

// Engines ask for all room at once.
void ShadowGroups::make_room(std::span<const UsedBlock> blocks) {
  std::vector<std::uint64_t> wanted(pools_.size());
  for (const UsedBlock& used : blocks) {
    wanted[has_pools() ? used.group : 0] += options_.groups[used.group].block_bytes;
  }
  for (std::size_t i = 0; i < pools_.size(); ++i) {
    Pool& pool = pools_[i];
    while (pool.used_bytes > pool.capacity_bytes - std::min(pool.capacity_bytes, wanted[i])) {
      const std::uint32_t block = victim(pool);
      if (block == kNoBlock) break;
      evict(block);
    }
  }
}

void ShadowGroups::evict(std::uint32_t block) {
  unlist(block);
  const Node node = nodes_[block];
  const std::uint64_t hash = block_hash(node.key_hash, node.group);
  index_.erase(hash);
  if (!follows_parent(node)) ghosts_.remember(hash, node.history);
  if (node.parent != kNoBlock) {
    Node& parent = nodes_[node.parent];
    if (--parent.children == 0 && parent.place == Place::parked) relist(node.parent);
  }
  const std::uint64_t bytes = options_.groups[node.group].block_bytes;
  pool_of(node.group).used_bytes -= bytes;
  group_bytes_[node.group] -= bytes;
  nodes_[block].next = first_free_;
  first_free_ = block;
  if (!has_pools() || node.group != use_.parent_group()) return;
  // No match can end here any more.
  for (GroupIndex g = 0; g < options_.groups.size(); ++g) {
    if (options_.groups[g].kind == UsedGroup::Kind::full) continue;
    const std::uint32_t useless = find(node.key_hash, g);
    if (useless != kNoBlock && nodes_[useless].place != Place::none) evict(useless);
  }
}

void ShadowGroups::insert_before(std::uint32_t block, std::uint32_t next) {
  Node& node = nodes_[block];
  Pool& pool = pool_of(node.group);
  pool.lists[node.history.list].insert_before(nodes_, block, next);
  pool.non_empty |= std::uint64_t{1} << node.history.list;
  node.place = Place::listed;
}

void ShadowGroups::unlist(std::uint32_t block) {
  Node& node = nodes_[block];
  if (node.place == Place::listed) {
    Pool& pool = pool_of(node.group);
    LinkedBlocks& from = pool.lists[node.history.list];
    from.remove(nodes_, block);
    if (from.empty()) pool.non_empty &= ~(std::uint64_t{1} << node.history.list);
  }
  node.place = Place::none;
}

void ShadowGroups::relist(std::uint32_t block) {
  const Node& node = nodes_[block];
  // By last use: before blocks used later, and after the rest of its request, which was listed
  // before it.
  std::uint32_t next = pool_of(node.group).lists[node.history.list].first;
  while (next != kNoBlock &&
         static_cast<std::int32_t>(nodes_[next].history.request - node.history.request) <= 0) {
    next = nodes_[next].next;
  }
  insert_before(block, next);
}

std::uint32_t ShadowGroups::first_leaf(Pool& pool, std::uint32_t list) {
  while (!pool.lists[list].empty()) {
    const std::uint32_t block = pool.lists[list].first;
    if (nodes_[block].children == 0) return block;
    unlist(block);
    nodes_[block].place = Place::parked;
  }
  return kNoBlock;
}

std::uint32_t ShadowGroups::victim(Pool& pool) {
  if (pool.has_chosen && !pool.lists[pool.chosen_list].empty()) {
    const std::uint32_t block = first_leaf(pool, pool.chosen_list);
    if (block != kNoBlock && nodes_[block].history.request == pool.chosen_request) return block;
  }
  std::uint32_t best = kNoBlock;
  float least = std::numeric_limits<float>::infinity();
  for (std::uint64_t left = pool.non_empty; left != 0; left &= left - 1) {
    const auto list = static_cast<std::uint32_t>(std::countr_zero(left));
    const std::uint32_t block = first_leaf(pool, list);
    if (block == kNoBlock) continue;
    const float worth = policy_->worth(nodes_[block].history, 0);
    if (worth >= least) continue;
    least = worth;
    best = block;
    pool.chosen_list = list;
  }
  pool.has_chosen = best != kNoBlock;
  if (pool.has_chosen) pool.chosen_request = nodes_[best].history.request;
  return best;
}

}  // namespace cairn
