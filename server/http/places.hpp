#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <unordered_set>

#include "base/clock.hpp"
#include "base/mutex.hpp"

namespace cairn::http {

class Mailbox;
class Places;

// The thing that a connection waits for from its client. Lower values give way first; among equals,
// the connection that has waited longest.
enum class WaitsFor : std::uint8_t {
  first_request,  // it has not sent a request yet
  request,        // the next request
  bytes,          // bytes of a body, or room for a response
};

// One connection's place. The destructor frees it, on any thread.
class Place {
 public:
  ~Place();
  Place(const Place&) = delete;
  Place& operator=(const Place&) = delete;

  // Only on the connection's thread:
  // From now on yield() requests go to `mailbox`. Returns false if one was made before.
  bool attach(std::shared_ptr<Mailbox> mailbox);
  void waits(WaitsFor what, TimePoint since) {
    rank_.store(rank_of(what, since), std::memory_order_relaxed);
  }
  // The connection is busy: it does not give way.
  void works() { rank_.store(kWorks, std::memory_order_relaxed); }
  bool is_beyond_limit() const { return beyond_limit_; }
  // Moves a connection above the limit to a regular place: a free one, or that of the connection
  // that has waited longest, which is asked to give way. `soon`: one will soon have waited long
  // enough.
  enum class Moved : std::uint8_t { yes, soon, no };
  Moved move_within_limit(TimePoint now);
  // Call if asked to give way while busy.
  void stay();
  // Counts a request that was refused for lack of a place.
  void count_refused();

 private:
  friend class Places;
  static constexpr std::uint64_t kWorks = UINT64_MAX;
  // The lowest rank gives way first.
  static constexpr std::uint64_t rank_of(WaitsFor what, TimePoint since) {
    return (std::uint64_t{static_cast<std::uint8_t>(what)} << 62) |
           static_cast<std::uint64_t>(since.time_since_epoch().count());
  }
  explicit Place(Places& places) : places_(places) {}

  Places& places_;
  std::atomic<std::uint64_t> rank_{kWorks};
  bool beyond_limit_ = false;
  // Guarded by the mutex of `places_`:
  bool counted_ = false;
  bool leaving_ = false;
  std::shared_ptr<Mailbox> mailbox_;
};

// Limits the open connections of all threads. Accepts a few more, so that health checks and
// administrators get in whatever other clients do. Thread-safe.
class Places {
 public:
  // Connections above the limit. The one that has waited longest gives way to the next, so a client
  // can send its first request until this many others have connected.
  static constexpr std::uint32_t kBeyond = 64;
  // A client that pauses for less is about to send a request.
  static constexpr std::chrono::milliseconds kLeastIdle{250};
  // How long a request waits for a regular place before it is refused.
  static constexpr std::chrono::milliseconds kMostWait{500};

  explicit Places(std::uint32_t most) : most_(most) {}
  // `place` is null if there is none, not even above the limit. `soon`: as many connections as
  // allowed are giving way, and a place is free when they have left; the caller should wait.
  struct Taken {
    std::unique_ptr<Place> place;
    bool soon = false;
  };
  Taken take(TimePoint now);
  std::uint32_t open() const;
  // Connections closed at once, or requests refused, for lack of a place.
  std::uint64_t refused() const { return refused_.load(std::memory_order_relaxed); }
  // Returns false if connections are still open at `end`.
  bool wait_none(std::chrono::system_clock::time_point end) const;

 private:
  friend class Place;
  // Returns the connection that gives way first, within or above the limit, with a rank below
  // `rank`; null if none.
  Place* first_to_leave(bool beyond_limit, std::uint64_t rank) const CAIRN_REQUIRES(mutex_);
  // Marks the place as leaving, and returns the mailbox to notify (null before attach()). The
  // connection is still open, but no longer has a place.
  std::shared_ptr<Mailbox> leaves(Place& place) CAIRN_REQUIRES(mutex_);
  std::uint32_t& count_of(const Place& place) CAIRN_REQUIRES(mutex_);

  const std::uint32_t most_;
  std::atomic<std::uint64_t> refused_{0};
  mutable Mutex mutex_;
  mutable Condition none_;
  std::unordered_set<Place*> all_ CAIRN_GUARDED_BY(mutex_);
  // Leaving connections count only in leaving_, which is limited too: they are still open.
  std::uint32_t within_ CAIRN_GUARDED_BY(mutex_) = 0;
  std::uint32_t beyond_ CAIRN_GUARDED_BY(mutex_) = 0;
  std::uint32_t leaving_ CAIRN_GUARDED_BY(mutex_) = 0;
};

}  // namespace cairn::http
