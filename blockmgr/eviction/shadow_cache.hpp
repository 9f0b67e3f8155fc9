#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "blockmgr/eviction/ghost_table.hpp"
#include "blockmgr/eviction/linked_blocks.hpp"
#include "blockmgr/eviction/places_by_hash.hpp"
#include "blockmgr/eviction/policy.hpp"

namespace cairn {

// A request as far as a cache's hit rate depends on it.
struct ShadowRequest {
  std::span<const std::uint64_t> blocks = {};  // a hash of each key, the prefix's first block first
  std::int64_t unix_ms = 0;
  RequestEnd end = {};
  // Where `blocks` are a sample of what it asked for.
  std::optional<RequestSample> sample = {};
  std::uint32_t asked = 0;  // with a sample: all of them
};

// What a cache of one tier would hold, without its bytes: the longest present prefix of a request
// are hits, then all of its blocks are used and the missing ones stored, as far as there is room.
// Only blocks without present children go, and none of the request under way. 32 bytes a block, and
// its place in the index. Not thread-safe.
class ShadowCache {
 public:
  struct Options {
    EvictionKind eviction = EvictionKind::lru;
    std::uint32_t capacity_blocks = 0;
    std::uint32_t ghost_blocks = 0;
    // Of a model that is told a sample only: the blocks of the cache that it stands for.
    std::uint32_t model_of_blocks = 0;
    std::uint32_t max_requests = ~std::uint32_t{0};  // that the policy remembers
  };
  explicit ShadowCache(const Options& options);

  // How many blocks it found.
  std::uint32_t request(const ShadowRequest& request);
  // Of how many of the last request's blocks nothing was known, as far as the order asks.
  std::optional<std::uint32_t> unknown_blocks() const { return unknown_blocks_; }
  // True: what was used least recently goes next, and the order that is set goes on learning.
  void follow_lru(bool follows_lru) { follows_lru_ = follows_lru; }
  bool is_hub(std::uint64_t hash) const {
    const HashedPlace* found = index_.find(hash);
    return found != nullptr && nodes_[found->number].children >= kHubChildren;
  }
  std::uint64_t memory_bytes() const;

 private:
  enum class Place : std::uint8_t { none, listed, parked };
  struct Node {
    std::uint64_t hash = 0;
    BlockHistory history;
    std::uint32_t parent = kNoBlock;
    std::uint32_t children : 30 = 0;
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
  std::uint32_t store(std::uint64_t hash, std::uint32_t parent);
  void list(std::uint32_t block, NextUse told);
  bool evict();
  std::uint32_t victim();
  std::uint32_t first_leaf(std::uint32_t list);
  void relist(std::uint32_t block);
  float worth(std::uint32_t block, std::uint32_t expected) const;

  Options options_;
  std::unique_ptr<EvictionPolicy> policy_;
  GhostTable ghosts_;
  std::vector<Node> nodes_;
  std::uint32_t first_free_ = kNoBlock;  // by Node::next
  PlacesByHash<HashAt> index_;
  std::array<LinkedBlocks, EvictionPolicy::kMaxLists> lists_;
  std::uint64_t non_empty_ = 0;  // a bit a list
  std::vector<std::uint32_t> pinned_;
  // Victims come from this list as long as its first is of the same request.
  std::uint32_t chosen_list_ = 0;
  RequestNumber chosen_request_ = 0;
  bool has_chosen_ = false;
  bool follows_lru_ = false;
  RequestNumber last_request_ = 0;
  std::optional<std::uint32_t> unknown_blocks_;
};

}  // namespace cairn
