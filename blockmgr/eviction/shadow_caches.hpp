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

// A request as far as a cache's hit rate depends on it.
struct ShadowRequest {
  std::span<const std::uint64_t> blocks = {};  // a hash of each key, the prefix's first block first
  std::int64_t unix_ms = 0;
  RequestEnd end = {};
  // Where `blocks` are a sample of what it asked for.
  std::optional<RequestSample> sample = {};
  std::uint32_t asked = 0;  // with a sample: all of them
};

// What caches of one tier would hold, without their bytes: see ShadowRoom. They differ in size only
// and are told the same requests, so what an order of eviction learns of them is the same, and is
// learnt once for all. Not thread-safe.
class ShadowCaches {
 public:
  struct Options {
    EvictionKind eviction = EvictionKind::lru;
    std::vector<ShadowRoom::Size> sizes = {};  // one at least, the largest first
    std::uint32_t ghost_blocks = 0;
    // Of models that are told a sample only: the blocks of the cache whose order it is. 0: the
    // first one's.
    std::uint32_t model_of_blocks = 0;
    std::uint32_t max_requests = ~std::uint32_t{0};  // that the policy remembers
  };
  explicit ShadowCaches(const Options& options);

  // How many blocks the first one found.
  std::uint32_t request(const ShadowRequest& request);
  // How many of the last request's blocks that one found.
  std::uint32_t hits(std::size_t size) const { return rooms_[size].hits(); }
  // Of how many of the last request's blocks nothing was known, as far as the order asks.
  std::optional<std::uint32_t> unknown_blocks() const { return unknown_blocks_; }
  // True: in that one what was used least recently goes next, and the order goes on learning.
  void follow_lru(std::size_t size, bool follows_lru) { rooms_[size].follow_lru(follows_lru); }
  bool is_hub(std::uint64_t hash) const { return rooms_.front().is_hub(hash); }
  std::uint64_t memory_bytes() const;

 private:
  void ask(std::uint64_t hash, RequestNumber request);
  struct Asked {
    std::size_t number = 0;  // of the block among those of the request
    std::uint64_t hash = 0;
  };
  void list(const Asked& asked, NextUse next_use);

  std::unique_ptr<EvictionPolicy> policy_;
  GhostTable ghosts_;
  std::vector<ShadowRoom> rooms_;
  std::optional<std::uint32_t> unknown_blocks_;
};

}  // namespace cairn
