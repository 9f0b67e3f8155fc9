#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "blockmgr/eviction/linked_blocks.hpp"
#include "blockmgr/eviction/places_by_hash.hpp"
#include "blockmgr/eviction/policy.hpp"

namespace cairn {

// The blocks that a cache of one tier holds, without their bytes. A request's longest present
// prefix is its hits. Then all its blocks are used, and the missing ones stored as far as there is
// room. Only blocks without present children are evicted, and none of the current request. 32 bytes
// per block, plus its place in the index. Not thread-safe.
class ShadowRoom {
 public:
  struct Size {
    std::uint32_t capacity_blocks = 0;
    std::uint32_t one_in = 1;  // takes only the blocks that is_sampled() selects
  };
  // Borrows the policy. The caller reports the uses to it.
  ShadowRoom(const EvictionPolicy& policy, EvictionKind eviction, const Size& size);

  // True: evicts the least recently used block next.
  void follow_lru(bool follows_lru) { follows_lru_ = follows_lru; }

  // A request, block by block: ask(), then make_room() and keep().
  void begin(RequestNumber number);
  // Returns the block's history; null if it is not present.
  const BlockHistory* ask(std::uint64_t hash);
  struct Gone {
    std::uint64_t hash = 0;
    BlockHistory history;
  };
  // Evicts and returns a block if the block asked for needs room. Once a block finds no
  // room, the request's later blocks are not taken either.
  std::optional<Gone> make_room();
  // True if the block is present or may be stored.
  bool may_keep() const { return is_asked_ && !is_full_; }
  bool asks_hub() const {
    return held_.back() != kNoBlock && nodes_[held_.back()].children >= kHubChildren;
  }
  void keep(std::uint64_t hash, const BlockHistory& history);
  // After all blocks were asked for, list the kept ones, from the last to the first. `number` is
  // the block's index in the request.
  bool holds(std::size_t number) const { return held_[number] != kNoBlock; }
  // True if no block follows it, or only one for which this is true.
  bool is_end(std::size_t number);
  bool is_listed(std::size_t number) const {
    return nodes_[held_[number]].place != static_cast<unsigned>(Place::none);
  }
  const BlockHistory& history(std::size_t number) const { return nodes_[held_[number]].history; }
  void list(std::size_t number, const BlockHistory& history);
  // Updates the history of a block that is present, though its request had no room for it.
  void note_unkept(std::uint64_t hash, const BlockHistory& history);
  std::uint32_t hits() const { return hits_; }

  // A pin: the block is not evicted until unprotect(). Returns false if it is not present.
  bool protect(std::uint64_t hash);
  void unprotect(std::uint64_t hash);

  bool contains(std::uint64_t hash) const { return index_.contains(hash); }
  bool is_hub(std::uint64_t hash) const {
    const HashedPlace* found = index_.find(hash);
    return found != nullptr && nodes_[found->number].children >= kHubChildren;
  }
  std::uint64_t memory_bytes() const {
    return nodes_.capacity() * sizeof(Node) + index_.memory_bytes();
  }

 private:
  enum class Place : std::uint8_t { none, listed, parked };
  struct Node {
    std::uint64_t hash = 0;
    BlockHistory history;
    std::uint32_t parent = kNoBlock;
    std::uint32_t children : 29 = 0;
    std::uint32_t is_protected : 1 = 0;
    std::uint32_t place : 2 = 0;
    std::uint32_t previous = kNoBlock;
    std::uint32_t next = kNoBlock;
  };
  static_assert(sizeof(Node) == 32);
  struct HashAt {
    const Node* nodes = nullptr;
    std::uint64_t operator()(std::uint32_t block) const { return nodes[block].hash; }
  };

  static std::vector<Node> reserved(std::uint32_t nodes);
  void pin(std::uint32_t block);
  void insert_before(std::uint32_t block, std::uint32_t next);  // kNoBlock: at the end
  std::uint32_t victim();
  std::uint32_t first_leaf(std::uint32_t list);
  // A parked block that may be evicted again.
  void relist(std::uint32_t block);
  bool may_go(const Node& node) const { return node.children == 0 && node.is_protected == 0; }
  float worth(std::uint32_t block, std::uint32_t expected) const;

  const EvictionPolicy* policy_;
  bool is_lru_;
  Size size_;
  std::vector<Node> nodes_;
  std::uint32_t first_free_ = kNoBlock;  // linked by Node::next
  PlacesByHash<HashAt> index_;
  std::array<LinkedBlocks, EvictionPolicy::kMaxLists> lists_;
  std::uint64_t non_empty_ = 0;  // one bit per list
  // Victims come from this list while its first block is of the same request.
  std::uint32_t chosen_list_ = 0;
  RequestNumber chosen_request_ = 0;
  bool has_chosen_ = false;
  bool follows_lru_ = false;

  // Of the current request:
  RequestNumber request_ = 0;
  std::vector<std::uint32_t> held_;  // by number
  std::uint32_t last_held_ = kNoBlock;
  std::uint32_t end_ = kNoBlock;  // the last block for which is_end() was true
  std::uint32_t hits_ = 0;
  bool is_prefix_ = true;
  bool is_asked_ = false;
  bool is_full_ = false;
};

}  // namespace cairn
