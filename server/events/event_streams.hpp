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

// What a client wants to hear of, and from where on.
struct EventInterest {
  std::vector<std::string> caches;     // empty: every one
  std::optional<std::uint64_t> after;  // the id of the last event it has; nothing: from now on
  // Asked before each look at what there is to tell: false ends the stream. Empty: it may.
  std::function<bool()> may_listen = {};
};

// The clients that listen to events as they come (Server-Sent Events). Each reads the manager's
// ring at its own pace, so one that is slow misses events, is told so, and holds nobody up.
// Thread-safe.
class EventStreams {
 public:
  // Each is a connection, and a look at the ring every kPollPeriod.
  static constexpr std::uint32_t kMaxStreams = 256;
  // How late an event is told at the most.
  static constexpr std::chrono::milliseconds kPollPeriod{20};
  // Proxies cut what is silent for longer.
  static constexpr std::chrono::seconds kKeepAlive{15};

  // Borrows both. At most so many streams, or kMaxStreams.
  EventStreams(const BlockManager& manager, const Clock& clock,
               std::uint32_t max_streams = kMaxStreams);
  ~EventStreams();

  // The body of an endless response. too_many.
  Result<std::unique_ptr<http::Download>> open(EventInterest interest);
  // Tells those who wait of what has happened. Called every kPollPeriod.
  void poll();
  // Ends every stream: for a server that drains.
  void end();

 private:
  class Stream;
  class Body;
  struct Waiting {
    std::weak_ptr<Stream> stream;  // gone with its connection
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
