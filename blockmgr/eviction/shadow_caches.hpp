#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "blockmgr/eviction/ghost_table.hpp"
#include "blockmgr/eviction/policy.hpp"
#include "blockmgr/eviction/shadow_room.hpp"

namespace cairn {

// The parts of a request that a cache's hit rate depends on.
struct ShadowRequest {
  std::span<const std::uint64_t> blocks = {};  // a hash of each key, the prefix's first block first
  std::int64_t unix_ms = 0;
  RequestEnd end = {};
  // Set if `blocks` are a sample of the blocks asked for.
  std::optional<RequestSample> sample = {};
  std::uint32_t asked = 0;  // with a sample: all blocks asked for
};

// The contents of caches of one tier, without their bytes: see ShadowRoom. They differ only in size
// and get the same requests, so an eviction order learns the same of each and is shared by all. Not
// thread-safe.
class ShadowCaches {
 public:
  struct Options {
    EvictionKind eviction = EvictionKind::lru;
    std::vector<ShadowRoom::Size> sizes = {};  // at least one, the largest first
    std::uint32_t ghost_blocks = 0;
    // If the models get only a sample: the size of the modelled cache. 0: that of the first.
    std::uint32_t model_of_blocks = 0;
    std::uint32_t max_requests = ~std::uint32_t{0};  // remembered by the policy
  };
  explicit ShadowCaches(const Options& options);

  // Returns how many blocks the first cache found.
  std::uint32_t request(const ShadowRequest& request);
  // How many of the last request's blocks that cache found.
  std::uint32_t hits(std::size_t size) const { return rooms_[size].hits(); }
  // How many of the last request's blocks had no history, if the order has counted that.
  std::optional<std::uint32_t> unknown_blocks() const { return unknown_blocks_; }
  // True: that cache evicts the least recently used block, and the order goes on learning.
  void follow_lru(std::size_t size, bool follows_lru) { rooms_[size].follow_lru(follows_lru); }
  // A pin in the first cache: the block is not evicted until unprotect(). Returns false if that
  // cache does not hold it.
  bool protect(std::uint64_t hash) { return rooms_.front().protect(hash); }
  void unprotect(std::uint64_t hash) { rooms_.front().unprotect(hash); }
  bool is_hub(std::uint64_t hash) const { return rooms_.front().is_hub(hash); }
  std::uint64_t memory_bytes() const;

 private:
  void ask(std::uint64_t hash, RequestNumber request);
  struct Asked {
    std::size_t number = 0;  // index in the request
    std::uint64_t hash = 0;
  };
  void list(const Asked& asked, NextUse next_use);

  std::unique_ptr<EvictionPolicy> policy_;
  GhostTable ghosts_;
  std::vector<ShadowRoom> rooms_;
  std::optional<std::uint32_t> unknown_blocks_;
};

}  // namespace cairn
