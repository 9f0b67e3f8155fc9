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

// Written into snapshots and records of blocks by number; 2 was lrfu until 0.3.
enum class EvictionKind : std::uint8_t { lru, class_hazard };
// Of a cache for which nobody has chosen: it follows LRU where that finds more.
inline constexpr EvictionKind kDefaultEviction = EvictionKind::class_hazard;
std::string_view to_string(EvictionKind kind);
std::optional<EvictionKind> eviction_kind_from(std::string_view word);

// In which order blocks go. A block that may be evicted is in one of a few lists, the least
// recently used first; the next to go is, of the first of each list, the one that is worth least.
// So a use costs a constant time whatever the worth depends on, and what is learnt meanwhile counts
// for blocks that lie there already. As each list is in the order of last use, LRU needs no lists
// of its own: it takes the one whose first was used before those of the others.
//
// The blocks of a prompt were mostly used and listed together before: their histories are equal,
// and what is done to the first of them is done to the next. That is a comparison and a copy here;
// the order itself hears of the first, and when something else happens of how many followed.
//
// Not thread-safe.
class EvictionPolicy {
 public:
  // Together with those of blocks of which nothing is known, a list for each NextUse, a word of
  // bits.
  static constexpr std::uint32_t kMaxLists = 64 - kNextUses;

  virtual ~EvictionPolicy() = default;

  // 1 to kMaxLists.
  virtual std::uint32_t lists() const = 0;
  RequestNumber begin(const RequestStart& start) {
    end_runs();
    return begin_request(start);
  }
  // The request found the block, or stores it. False, and nothing has changed, where it did before;
  // else the block is no hub any more, unless the caller says so.
  bool touched(BlockHistory& block, RequestNumber request) {
    return touching_.goes_on(block, request) || touch_first(block, request);
  }
  // What is known of a request when its blocks are listed counts. Of how many of its blocks nothing
  // was known before, as far as the order asks.
  std::optional<std::uint32_t> ended(RequestNumber request, const RequestEnd& end) {
    end_runs();
    return end_request(request, end);
  }
  // Nobody uses the block any more: it is put into block.list. `told` is what its last user expects
  // of it, as far as that may be believed of this block.
  void listed(BlockHistory& block, NextUse told) {
    if (!listing_.goes_on(block, static_cast<std::uint32_t>(told))) list_first(block, told);
  }
  // What is expected of the block is what ended() says of this request, which does not use it.
  void retold(BlockHistory& block, RequestNumber request) {
    end_runs();
    retell(block, request);
  }
  // Of one that is listed. Less goes first. `expected_blocks` are listed with a NextUse that is
  // soon.
  virtual float worth(const BlockHistory& block, std::uint32_t expected_blocks) const = 0;
  virtual std::uint64_t memory_bytes() const = 0;
  // What is known of a block, for another run of the same order; 0: nothing.
  virtual std::uint64_t kept(const BlockHistory& /*block*/) const { return 0; }
  // A block of an earlier run, of which that knew this. Before the first request, and in the order
  // of last use. False, and nothing has changed, where it is nothing that this order can read.
  virtual bool take_kept(BlockHistory& /*block*/, std::uint64_t /*kept*/, NextUse /*told*/) {
    return false;
  }
  // What it has learnt of the workload, not of single blocks, for another of the same kind: some
  // KB, or nothing.
  virtual std::vector<std::byte> learnt() { return {}; }
  // Goes on from there. False, and nothing has changed, where it is none that it can read.
  virtual bool take_learnt(std::span<const std::byte> /*learnt*/) { return false; }

 protected:
  static constexpr std::uint32_t kAnyNumber = ~std::uint32_t{0};

  virtual RequestNumber begin_request(const RequestStart& start) = 0;
  // To how many blocks after it the same may be done, if their histories are what this one was.
  virtual std::uint32_t touch(BlockHistory& block, RequestNumber request) = 0;
  virtual std::uint32_t list(BlockHistory& block, NextUse told) = 0;
  // It was done to so many. Of listing only where that changed their histories.
  virtual void touched_more(const BlockHistory& /*before*/, RequestNumber /*request*/,
                            std::uint32_t /*count*/) {}
  virtual void listed_more(const BlockHistory& /*after*/, std::uint32_t /*count*/) {}
  virtual std::optional<std::uint32_t> end_request(RequestNumber /*request*/,
                                                   const RequestEnd& /*end*/) {
    return std::nullopt;
  }
  virtual void retell(BlockHistory& /*block*/, RequestNumber /*request*/) {}

 private:
  struct Run {
    // Of no block: BlockHistory::unused is never set.
    static constexpr std::uint64_t kNoHistory = ~std::uint64_t{0};

    std::uint64_t of = kNoHistory;  // it goes on for blocks of this history
    std::uint64_t before = 0;       // that of the first one
    std::uint64_t after = 0;
    std::uint32_t why = 0;   // the request, or what was told
    std::uint32_t left = 0;  // it goes on for so many
    std::uint32_t most = 0;  // behind the first one

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
  void list_first(BlockHistory& block, NextUse told);
  void end_runs();

  Run touching_;
  Run listing_;
};

struct PolicyOptions {
  EvictionKind eviction = EvictionKind::lru;
  std::uint32_t capacity_blocks = 0;  // of the cache
  // That are remembered at most; each takes 72 bytes.
  std::uint32_t max_requests = ~std::uint32_t{0};
};
std::unique_ptr<EvictionPolicy> make_eviction_policy(const PolicyOptions& options);

}  // namespace cairn
