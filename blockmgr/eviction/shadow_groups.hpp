#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "blockmgr/eviction/ghost_table.hpp"
#include "blockmgr/eviction/group_use.hpp"
#include "blockmgr/eviction/linked_blocks.hpp"
#include "blockmgr/eviction/places_by_hash.hpp"
#include "blockmgr/eviction/policy.hpp"
#include "blockmgr/eviction/shadow_caches.hpp"

namespace cairn {

// The contents of a cache of several KV groups, without their bytes: as ShadowCaches, with one
// tier, and with the rules of a server (docs/design/kv-groups.md). Its size is in bytes: a block
// takes those of its group and no more.
//
// A request finds the longest prefix that all groups can serve, and uses the blocks that this
// needs. Then it stores the full groups' blocks of the rest of its prompt and its tails, as far as
// they are absent: see GroupUse.
//
// The parent of a window's or a state's block is the full block of its key, and decides about it:
// the policy learns from full blocks only. Not thread-safe.
class ShadowGroups {
 public:
  struct Options {
    EvictionKind eviction = EvictionKind::lru;
    std::uint32_t block_tokens = 0;  // that a key names
    std::vector<UsedGroup> groups = {};
    std::uint64_t capacity_bytes = 0;
    // Not empty: each group has a pool of its own of this many bytes, and evicts by itself, as
    // engines do. `capacity_bytes` is unused then.
    std::vector<std::uint64_t> pool_bytes = {};
    std::uint32_t policy_blocks = 0;  // the size that the policy is made for, in keys
    std::uint32_t ghost_blocks = 0;
    GroupUse::Tails tails = GroupUse::Tails::partings;
  };
  explicit ShadowGroups(Options options);

  struct Match {
    std::uint32_t matched = 0;       // keys
    std::uint32_t full_matched = 0;  // by the full groups alone
  };
  Match request(const ShadowRequest& request);
  std::uint64_t used_bytes(std::size_t group) const { return group_bytes_[group]; }

 private:
  using GroupIndex = std::uint32_t;
  enum class Place : std::uint8_t { none, listed, parked };
  struct Node {
    std::uint64_t key_hash = 0;
    BlockHistory history;
    std::uint32_t parent = kNoBlock;
    std::uint32_t children = 0;
    std::uint32_t previous = kNoBlock;
    std::uint32_t next = kNoBlock;
    std::uint8_t group = 0;
    Place place = Place::none;
  };
  static std::uint64_t block_hash(std::uint64_t key_hash, GroupIndex group);
  struct HashAt {
    const std::vector<Node>* nodes = nullptr;
    std::uint64_t operator()(std::uint32_t block) const {
      const Node& node = (*nodes)[block];
      return block_hash(node.key_hash, node.group);
    }
  };
  // Blocks that are evicted by each other's turn.
  struct Pool {
    std::vector<LinkedBlocks> lists;
    std::uint64_t non_empty = 0;  // one bit per list
    std::uint64_t capacity_bytes = 0;
    std::uint64_t used_bytes = 0;
    // Victims come from this list while its first block is of the same request.
    std::uint32_t chosen_list = 0;
    RequestNumber chosen_request = 0;
    bool has_chosen = false;
  };

  std::uint32_t find(std::uint64_t key_hash, GroupIndex group) const;
  Match match(std::span<const std::uint64_t> keys);
  void look_at_full_groups(std::span<const std::uint64_t> keys);
  bool full_groups_serve(std::span<const std::uint64_t> keys, std::uint32_t n) const;
  bool tails_serve(std::span<const std::uint64_t> keys, std::uint32_t n) const;
  // The block that must be present before this one is stored; nullopt if there is none.
  std::optional<UsedBlock> parent_of(const UsedBlock& used) const;
  // Adds a block to those that the request holds. store() does nothing if there is no room.
  void hold(std::uint32_t block);
  void store(const UsedBlock& used, std::span<const std::uint64_t> keys);
  // Evicts until there is room for these blocks, as far as that is possible.
  void make_room(std::span<const UsedBlock> blocks);
  void list_held(NextUse next_use);
  bool has_pools() const { return pools_.size() > 1; }
  bool is_full(const Node& node) const {
    return options_.groups[node.group].kind == UsedGroup::Kind::full;
  }
  // Whether the full block of its key decides when it is evicted.
  bool follows_parent(const Node& node) const { return !is_full(node) && node.parent != kNoBlock; }
  Pool& pool_of(GroupIndex group) { return pools_[pools_.size() == 1 ? 0 : group]; }
  void insert_before(std::uint32_t block, std::uint32_t next);
  void unlist(std::uint32_t block);
  void relist(std::uint32_t block);
  void evict(std::uint32_t block);
  std::uint32_t victim(Pool& pool);
  std::uint32_t first_leaf(Pool& pool, std::uint32_t list);

  const Options options_;
  const GroupUse use_;
  std::unique_ptr<EvictionPolicy> policy_;
  GhostTable ghosts_;
  std::vector<Node> nodes_;
  std::uint32_t first_free_ = kNoBlock;  // linked by Node::next
  PlacesByHash<HashAt> index_;
  std::vector<Pool> pools_;
  std::vector<std::uint64_t> group_bytes_;
  RequestNumber request_ = 0;
  std::vector<std::uint32_t> whole_keys_;  // by full group: of the first blocks that are present
  std::vector<UsedBlock> blocks_;          // that the request needs or stores
  std::vector<std::uint32_t> held_;        // by the request, the prefix's first block first
};

}  // namespace cairn
