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

// What a connection waits for its client for. The first gives way first, and of one kind the
// connection that has waited longest.
enum class WaitsFor : std::uint8_t {
  first_request,  // it has not asked for anything yet
  request,        // the next one
  bytes,          // of a body, or room for those of a response
};

// One connection's place, given back at its end wherever that is.
class Place {
 public:
  ~Place();
  Place(const Place&) = delete;
  Place& operator=(const Place&) = delete;

  // Of the connection's thread only:
  // From now on it is told there when it is to give way. False where it is already.
  bool attach(std::shared_ptr<Mailbox> mailbox);
  void waits(WaitsFor what, TimePoint since) {
    rank_.store(rank_of(what, since), std::memory_order_relaxed);
  }
  // It does not give way.
  void works() { rank_.store(kWorks, std::memory_order_relaxed); }
  bool is_beyond_limit() const { return beyond_limit_; }
  // One beyond the limit takes a place of its own: a free one, or that of the connection that has
  // waited longest, which is told to give way. `soon`: one will have waited long enough.
  enum class Moved : std::uint8_t { yes, soon, no };
  Moved move_within_limit(TimePoint now);
  // It was told to give way, and does not.
  void stay();
  // What it asked for was refused for want of a place.
  void count_refused();

 private:
  friend class Places;
  static constexpr std::uint64_t kWorks = UINT64_MAX;
  // The lowest gives way first.
  static constexpr std::uint64_t rank_of(WaitsFor what, TimePoint since) {
    return (std::uint64_t{static_cast<std::uint8_t>(what)} << 62) |
           static_cast<std::uint64_t>(since.time_since_epoch().count());
  }
  explicit Place(Places& places) : places_(places) {}

  Places& places_;
  std::atomic<std::uint64_t> rank_{kWorks};
  bool beyond_limit_ = false;
  // Of `places_`, under its mutex:
  bool counted_ = false;
  bool leaving_ = false;
  std::shared_ptr<Mailbox> mailbox_;
};

// The connections that may be open at a time in all threads, and a few beyond them: who asks
// whether the server lives is answered, and an administrator comes in, whatever other clients do.
// Thread-safe.
class Places {
 public:
  // Beyond the limit at a time. The one of them that has waited longest gives way to the next, so a
  // client has for its first request as long as so many others take to connect.
  static constexpr std::uint32_t kBeyond = 64;
  // A client that pauses for less is about to ask for something.
  static constexpr std::chrono::milliseconds kLeastIdle{250};
  // How long a request waits for such a place before it is refused.
  static constexpr std::chrono::milliseconds kMostWait{500};

  explicit Places(std::uint32_t most) : most_(most) {}
  // Null where there is none, also beyond the limit. `soon`: as many are giving way as may at a
  // time, and there is one when they have; who waits is not refused.
  struct Taken {
    std::unique_ptr<Place> place;
    bool soon = false;
  };
  Taken take(TimePoint now);
  std::uint32_t open() const;
  // Connections that were closed at once, or whose request was refused, for want of a place.
  std::uint64_t refused() const { return refused_.load(std::memory_order_relaxed); }
  // False where some are still open at `end`.
  bool wait_none(std::chrono::system_clock::time_point end) const;

 private:
  friend class Place;
  // The connection that gives way first, of those within or beyond the limit whose rank is lower.
  Place* first_to_leave(bool beyond_limit, std::uint64_t rank) const CAIRN_REQUIRES(mutex_);
  // Who is to be told that it gives way, if anybody can be. It has no place from now on, and is
  // still open.
  std::shared_ptr<Mailbox> leaves(Place& place) CAIRN_REQUIRES(mutex_);
  std::uint32_t& count_of(const Place& place) CAIRN_REQUIRES(mutex_);

  const std::uint32_t most_;
  std::atomic<std::uint64_t> refused_{0};
  mutable Mutex mutex_;
  mutable Condition none_;
  std::unordered_set<Place*> all_ CAIRN_GUARDED_BY(mutex_);
  // Without those that leave, which are bounded too: they are still open.
  std::uint32_t within_ CAIRN_GUARDED_BY(mutex_) = 0;
  std::uint32_t beyond_ CAIRN_GUARDED_BY(mutex_) = 0;
  std::uint32_t leaving_ CAIRN_GUARDED_BY(mutex_) = 0;
};

}  // namespace cairn::http
