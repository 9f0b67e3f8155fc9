#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/mutex.hpp"
#include "blockmgr/eviction/capacity_curve.hpp"
#include "blockmgr/index/types.hpp"
#include "blockmgr/reuse/request_record.hpp"

namespace cairn {

// Follows the requests to a cache, and estimates its hit rate if it were larger, smaller or kept
// other blocks. It works outside the cache's lock: a request leaves a note, which costs one hash
// per key, and catch_up() processes the notes. If nobody calls that for long, a request does. If
// notes arrive faster than they can be processed, some are dropped. Passes the requests on to a
// RequestRecord, if there is one. Thread-safe.
class ReuseWatch {
 public:
  explicit ReuseWatch(const CapacityCurve::Options& options, RecordedCache recorded = {});

  struct Match {
    std::span<const KeyView> keys;
    std::span<const std::uint32_t> hubs;  // indexes of keys that many blocks follow, ascending
    std::int64_t unix_ms = 0;
    bool only_looks = false;  // no lease was requested
    std::size_t found = 0;    // how many of the keys
    std::optional<LeaseId> lease = {};
  };
  // Engines often look first, then take a lease: the same keys again soon are one request.
  void matched(const Match& match);
  // The request that took the lease has ended. `input_tokens`: the length of its prompt.
  void ended(const LeaseId& lease, const RequestEnd& end,
             std::optional<std::uint32_t> input_tokens = {});
  // Reports stored blocks that maybe no request asked for, by plain_hash() of their keys. If a
  // match without a lease missed the first of them, that request has this lease from now on.
  void stored(std::span<const std::uint64_t> key_hashes, const LeaseId& lease);
  // Processes the notes: some 100 to 700 ns per requested block for a small cache, less for more
  // than 30,000 blocks.
  void catch_up();
  // Discards what was seen so far, because the cache has another size or order of eviction.
  void start_anew(const CapacityCurve::Options& options);

  struct Report {
    std::uint64_t requests = 0;
    std::vector<CapacityCurve::Point> points = {};  // of the capacities requested
    double blocks_per_s = 0;                        // requested
    // Switches between LRU and the configured order since the cache was created.
    std::uint64_t order_changes = 0;
    double optimum = 0;  // 0 if not requested
  };
  Report report(std::span<const std::uint64_t> capacities_blocks, bool with_optimum = false) const;
  // True if the cache should use LRU for now: the configured order has done worse lately. Does not
  // block.
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

  // A hub stays a hub when its children are gone, because this decides how it is counted.
  static constexpr std::size_t kHubs = 4096;
  static std::size_t hub_place(std::uint64_t key_hash) { return (key_hash >> 16U) % kHubs; }
  std::array<std::atomic<std::uint32_t>, kHubs> hubs_{};           // upper half of a hash
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
  // The first keys that matches without a lease missed.
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
  std::uint64_t earlier_changes_ CAIRN_GUARDED_BY(curve_mutex_) = 0;  // of earlier curves
};

}  // namespace cairn
