#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "blockmgr/eviction/history.hpp"

namespace cairn {

// Stored as a number in snapshots and block records; 2 was lrfu until 0.3.
enum class EvictionKind : std::uint8_t { lru, class_hazard };
// For a cache without a choice. It follows LRU if that finds more.
inline constexpr EvictionKind kDefaultEviction = EvictionKind::class_hazard;
std::string_view to_string(EvictionKind kind);
std::optional<EvictionKind> eviction_kind_from(std::string_view word);

// The order in which blocks are evicted. Each evictable block is in one of a few lists, the least
// recently used first. The next victim is the least worthy of the lists' first blocks. So a use
// takes constant time whatever the worth depends on, and new knowledge applies to listed blocks
// too. Each list is in the order of last use, so LRU needs no separate lists: it takes the
// least recently used of the first blocks.
//
// The blocks of a prompt were mostly used and listed together before. Their histories are equal,
// and so are the changes to them: that is a comparison and a copy here. The order itself gets the
// first block, and later the number of blocks that followed.
//
// Not thread-safe.
class EvictionPolicy {
 public:
  // Together with the lists of blocks without a history, one per NextUse, these fill a word of
  // bits.
  static constexpr std::uint32_t kMaxLists = 64 - kNextUses;

  virtual ~EvictionPolicy() = default;

  // 1 to kMaxLists.
  virtual std::uint32_t lists() const = 0;
  RequestNumber begin(const RequestStart& start) {
    end_runs();
    return begin_request(start);
  }
  // The request found or stores the block. Returns false, unchanged, if it used the block before.
  // Otherwise clears is_hub, which the caller may set again.
  bool touched(BlockHistory& block, RequestNumber request) {
    return touching_.goes_on(block, request) || touch_first(block, request);
  }
  // Call before the request's blocks are listed: it applies to blocks listed later. Returns how
  // many of its blocks had no history, if the order has counted that.
  std::optional<std::uint32_t> ended(RequestNumber request, const RequestEnd& end) {
    end_runs();
    return end_request(request, end);
  }
  // The block may be evicted from now on; sets block.list. `hinted` is its last user's hint, as far
  // as it can be trusted for this block.
  void listed(BlockHistory& block, NextUse hinted) {
    if (!listing_.goes_on(block, static_cast<std::uint32_t>(hinted))) list_first(block, hinted);
  }
  // Applies this request's hint without counting a use.
  void rehinted(BlockHistory& block, RequestNumber request) {
    end_runs();
    rehint(block, request);
  }
  // The worth of a listed block; the least is evicted first. `expected_blocks` are listed with a
  // NextUse that is soon.
  virtual float worth(const BlockHistory& block, std::uint32_t expected_blocks) const = 0;
  virtual std::uint64_t memory_bytes() const = 0;
  // The block's history, for another run of the same order; 0: none.
  virtual std::uint64_t kept(const BlockHistory& /*block*/) const { return 0; }
  // Restores a block of an earlier run from its kept(). Call before the first request, in the order
  // of last use. Returns false, unchanged, if this order cannot read it.
  virtual bool take_kept(BlockHistory& /*block*/, std::uint64_t /*kept*/, NextUse /*hinted*/) {
    return false;
  }
  // Exports what it learnt about the workload, not about single blocks, for another policy of the
  // same kind: some KB, or empty.
  virtual std::vector<std::byte> learnt() { return {}; }
  // Restores the state. Returns false, unchanged, if it cannot be read.
  virtual bool take_learnt(std::span<const std::byte> /*learnt*/) { return false; }

 protected:
  static constexpr std::uint32_t kAnyNumber = ~std::uint32_t{0};

  virtual RequestNumber begin_request(const RequestStart& start) = 0;
  // Returns how many following blocks may be changed in the same way, if their histories equal
  // this block's.
  virtual std::uint32_t touch(BlockHistory& block, RequestNumber request) = 0;
  virtual std::uint32_t list(BlockHistory& block, NextUse hinted) = 0;
  // The same was done to `count` more blocks. For listing, called only if it changed their
  // histories.
  virtual void touched_more(const BlockHistory& /*before*/, RequestNumber /*request*/,
                            std::uint32_t /*count*/) {}
  virtual void listed_more(const BlockHistory& /*after*/, std::uint32_t /*count*/) {}
  virtual std::optional<std::uint32_t> end_request(RequestNumber /*request*/,
                                                   const RequestEnd& /*end*/) {
    return std::nullopt;
  }
  virtual void rehint(BlockHistory& /*block*/, RequestNumber /*request*/) {}

 private:
  struct Run {
    // Equals no history: BlockHistory::unused is never set.
    static constexpr std::uint64_t kNoHistory = ~std::uint64_t{0};

    std::uint64_t of = kNoHistory;  // applies to blocks with this history
    std::uint64_t before = 0;       // history of the first block
    std::uint64_t after = 0;
    std::uint32_t why = 0;   // the request, or the hint
    std::uint32_t left = 0;  // how many more blocks may follow
    std::uint32_t most = 0;  // how many may follow the first

    bool goes_on(BlockHistory& block, std::uint32_t why_now) {
      if (std::bit_cast<std::uint64_t>(block) != of || why != why_now) return false;
      block = std::bit_cast<BlockHistory>(after);
      if (--left == 0) of = kNoHistory;
      return true;
    }
  };
  static Run run(std::uint64_t before, const BlockHistory& after, std::uint32_t why,
                 std::uint32_t most);
  bool touch_first(BlockHistory& block, RequestNumber request);
  void list_first(BlockHistory& block, NextUse hinted);
  void end_runs();

  Run touching_;
  Run listing_;
};

struct PolicyOptions {
  EvictionKind eviction = EvictionKind::lru;
  std::uint32_t capacity_blocks = 0;  // of the cache
  // Remembered requests; each takes 72 bytes.
  std::uint32_t max_requests = ~std::uint32_t{0};
};
std::unique_ptr<EvictionPolicy> make_eviction_policy(const PolicyOptions& options);

}  // namespace cairn
