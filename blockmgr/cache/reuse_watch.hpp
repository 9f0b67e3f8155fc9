#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/mutex.hpp"
#include "blockmgr/cache/request_record.hpp"
#include "blockmgr/eviction/capacity_curve.hpp"
#include "blockmgr/index/types.hpp"

namespace cairn {

// Follows what is asked of a cache, and tells what it would hit if it were larger, smaller or kept
// other blocks. Beside the cache and its lock: a request leaves a note here, which costs it the
// hash of each key, and catch_up() works the notes off. Where nobody calls that for long a request
// does it, and where notes come faster than they can be worked off some are left out. Whoever wants
// to record the requests is told of them too. Thread-safe.
class ReuseWatch {
 public:
  explicit ReuseWatch(const CapacityCurve::Options& options, RecordedCache recorded = {});

  struct Match {
    std::span<const KeyView> keys;
    std::span<const std::uint32_t> hubs;  // those of them that many blocks follow, ascending
    std::int64_t unix_ms = 0;
    bool only_looks = false;  // no lease was asked for
    std::size_t found = 0;    // of the keys
    std::optional<LeaseId> lease = {};
  };
  // Engines look first and take a lease then: the same keys again at once are one request.
  void matched(const Match& match);
  // The request that took the lease has ended, with a prompt of so many tokens.
  void ended(const LeaseId& lease, const RequestEnd& end,
             std::optional<std::uint32_t> input_tokens = {});
  // Blocks that nobody may have asked for, by plain_hash() of their keys. Where a match that got no
  // lease missed the first of them, this lease is its request's from now on.
  void stored(std::span<const std::uint64_t> key_hashes, const LeaseId& lease);
  // Some 100 to 700 ns a block asked for of a small cache, less of one of more than 30,000 blocks.
  void catch_up();
  // The cache has another size or order of eviction: what was seen so far says nothing of it.
  void start_anew(const CapacityCurve::Options& options);

  struct Report {
    std::uint64_t requests = 0;
    std::vector<CapacityCurve::Point> points = {};  // of the capacities asked about
    double blocks_per_s = 0;                        // asked for
    // Between LRU and the order that is set, since the cache was made.
    std::uint64_t order_changes = 0;
    double optimum = 0;  // 0 where it was not asked for
  };
  Report report(std::span<const std::uint64_t> capacities_blocks, bool with_optimum = false) const;
  // The cache should go by LRU for now: the order that is set has done worse lately. Does not wait.
  bool follows_lru() const { return follows_lru_.load(std::memory_order_relaxed); }
  std::uint64_t memory_bytes() const;

 private:
  struct Note {
    enum class Kind : std::uint8_t { asked, renamed, ended, stored } kind = Kind::asked;
    CapacityCurve::Request request = {};
    std::uint64_t ticket = 0;
    RequestEnd end = {};
  };
  void leave(Note note) CAIRN_EXCLUDES(inbox_mutex_, curve_mutex_);
  void work_off() const CAIRN_REQUIRES(curve_mutex_);
  static std::uint64_t ticket_of(const LeaseId& lease);
  bool is_hub(std::uint64_t key_hash) const {
    const std::size_t place = hub_place(key_hash);
    const std::uint64_t bits = hub_bits_[place / 64].load(std::memory_order_relaxed);
    return (bits >> (place % 64) & 1U) != 0 &&
           hubs_[place].load(std::memory_order_relaxed) == key_hash >> 32U;
  }
  void remember_hub(std::uint64_t key_hash);

  // A hub whose children have gone is one all the same: what it is decides how it is counted.
  static constexpr std::size_t kHubs = 4096;
  static std::size_t hub_place(std::uint64_t key_hash) { return (key_hash >> 16U) % kHubs; }
  std::array<std::atomic<std::uint32_t>, kHubs> hubs_{};           // a hash's upper half
  std::array<std::atomic<std::uint64_t>, kHubs / 64> hub_bits_{};  // which places are used
  std::atomic<std::uint64_t> left_out_bits_;
  const RecordedCache recorded_;
  mutable std::atomic<bool> follows_lru_{false};

  // The last requests, by their last key.
  struct Seen {
    std::uint64_t key_hash = 0;
    std::uint64_t number = 0;
    std::uint64_t ticket = 0;
    std::size_t keys = 0;
    std::int64_t unix_ms = 0;
    bool only_looked = false;
  };
  static constexpr std::size_t kSeen = 256;
  // The first keys that matches without a lease have missed.
  struct Missed {
    std::uint64_t key_hash = 0;
    std::uint64_t ticket = 0;  // 0: none
  };
  void leave_renamed(std::uint64_t from, std::uint64_t to);
  mutable Mutex inbox_mutex_;
  mutable std::vector<Note> inbox_ CAIRN_GUARDED_BY(inbox_mutex_);
  mutable std::size_t inbox_blocks_ CAIRN_GUARDED_BY(inbox_mutex_) = 0;
  std::array<Seen, kSeen> seen_ CAIRN_GUARDED_BY(inbox_mutex_);
  std::array<Missed, kSeen> missed_ CAIRN_GUARDED_BY(inbox_mutex_);
  std::uint64_t requests_ CAIRN_GUARDED_BY(inbox_mutex_) = 0;
  mutable Mutex curve_mutex_;  // before inbox_mutex_
  mutable std::unique_ptr<CapacityCurve> curve_ CAIRN_GUARDED_BY(curve_mutex_);
  std::uint64_t earlier_changes_ CAIRN_GUARDED_BY(curve_mutex_) = 0;  // before it started anew
};

}  // namespace cairn
