#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "blockmgr/eviction/history.hpp"

namespace cairn {

enum class EvictionKind : std::uint8_t { lru, class_hazard, lrfu };
std::string_view to_string(EvictionKind kind);
std::optional<EvictionKind> eviction_kind_from(std::string_view word);

// In which order blocks go. A block that may be evicted is in one of a few lists, the least
// recently used first; the next to go is, of the first of each list, the one that is worth least.
// So a use costs a constant time whatever the worth depends on, and what is learnt meanwhile counts
// for blocks that lie there already. As each list is in the order of last use, LRU needs no lists
// of its own: it takes the one whose first was used before those of the others. Not thread-safe.
class EvictionPolicy {
 public:
  // Together with those of blocks of which nothing is known, a list for each NextUse, a word of
  // bits.
  static constexpr std::uint32_t kMaxLists = 64 - kNextUses;

  virtual ~EvictionPolicy() = default;

  // 1 to kMaxLists.
  virtual std::uint32_t lists() const = 0;
  virtual RequestNumber begin(const RequestStart& start) = 0;
  // The request found the block, or stores it.
  virtual void touched(BlockHistory& block, RequestNumber request) = 0;
  // What is known of a request when its blocks are listed counts.
  virtual void ended(RequestNumber request, const RequestEnd& end) = 0;
  // Nobody uses the block any more: it is put into block.list. `told` is what its last user expects
  // of it, as far as that may be believed of this block.
  virtual void listed(BlockHistory& block, NextUse told) = 0;
  // What is expected of the block is what ended() says of this request, which does not use it.
  virtual void retold(BlockHistory& block, RequestNumber request) = 0;
  // Of one that is listed. Less goes first. `expected_blocks` are listed with a NextUse that is
  // soon.
  virtual float worth(const BlockHistory& block, std::uint32_t expected_blocks) const = 0;
  virtual std::uint64_t memory_bytes() const = 0;
  // What it has learnt of the workload, not of single blocks, for another of the same kind: some
  // KB, or nothing.
  virtual std::vector<std::byte> learnt() const { return {}; }
  // Goes on from there. False, and nothing has changed, where it is none that it can read.
  virtual bool take_learnt(std::span<const std::byte> /*learnt*/) { return false; }
};

struct PolicyOptions {
  EvictionKind eviction = EvictionKind::lru;
  std::uint32_t capacity_blocks = 0;  // of the cache
  // That are remembered at most; each takes 72 bytes.
  std::uint32_t max_requests = ~std::uint32_t{0};
};
std::unique_ptr<EvictionPolicy> make_eviction_policy(const PolicyOptions& options);

}  // namespace cairn
