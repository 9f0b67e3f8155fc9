#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "base/mutex.hpp"
#include "blockmgr/block_manager.hpp"
#include "server/http/message.hpp"

namespace cairn {

// The events a client wants.
struct EventInterest {
  std::vector<std::string> caches;     // empty: all
  std::optional<std::uint64_t> after;  // id of the last event it has; nullopt: from now on
  // Asked before each read of the ring; false ends the stream. May be empty.
  std::function<bool()> may_listen = {};
};

// Clients that receive events as they happen (Server-Sent Events). Each reads the manager's ring at
// its own pace. A slow client misses events and gets a `gap` event, but delays nobody. Thread-safe.
class EventStreams {
 public:
  // Each stream costs a connection and a read of the ring every kPollPeriod.
  static constexpr std::uint32_t kMaxStreams = 256;
  // Maximum delay of an event.
  static constexpr std::chrono::milliseconds kPollPeriod{20};
  // Proxies close connections that are silent for longer.
  static constexpr std::chrono::seconds kKeepAlive{15};

  // Borrows both. Allows at most `max_streams` streams, or kMaxStreams.
  EventStreams(const BlockManager& manager, const Clock& clock,
               std::uint32_t max_streams = kMaxStreams);
  ~EventStreams();

  // Returns the body of an endless response. Error: too_many.
  Result<std::unique_ptr<http::Download>> open(EventInterest interest);
  // Sends new events to waiting clients. Call every kPollPeriod.
  void poll();
  // Ends all streams, when the server drains.
  void end();

 private:
  class Stream;
  class Body;
  struct Waiting {
    std::weak_ptr<Stream> stream;  // expires with its connection
    UniqueFunction<void(http::Download::Pieces)> ready;
  };
  void wait(Waiting waiting);

  const BlockManager& manager_;
  const Clock& clock_;
  const std::uint32_t max_streams_;
  std::atomic<bool> ended_{false};
  std::atomic<std::uint32_t> open_{0};
  Mutex mutex_;
  std::vector<Waiting> waiting_ CAIRN_GUARDED_BY(mutex_);
};

}  // namespace cairn
