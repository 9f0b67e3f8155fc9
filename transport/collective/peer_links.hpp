#pragma once

#include <sys/uio.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/mutex.hpp"
#include "transport/collective/communicator.hpp"
#include "transport/collective/link_socket.hpp"

namespace cairn {

// One rank's connections to all others; transfers many messages at once. A message is a head (its
// subject and length) and its bytes, which go directly from and to the caller's memory. Not
// thread-safe, except abort().
class PeerLinks {
 public:
  // `sockets`: one per rank, empty at this rank.
  PeerLinks(RankPlace place, std::vector<LinkSocket> sockets,
            std::chrono::milliseconds step_timeout);
  // Aborts.
  ~PeerLinks();
  PeerLinks(const PeerLinks&) = delete;
  PeerLinks& operator=(const PeerLinks&) = delete;

  // The call that a message is part of. If the two sides differ, the ranks are at different calls.
  enum class Topic : std::uint32_t { all_reduce = 1, all_gather, broadcast, exchange, finalize };
  struct Subject {
    Topic topic = Topic::exchange;
    std::uint32_t detail = 0;  // e.g. the root, or the type and the reduction

    friend bool operator==(const Subject&, const Subject&) = default;
  };

  // One message.
  struct Flow {
    enum class Way : std::uint8_t { out, in } way = Way::out;
    std::uint32_t peer = 0;
    std::vector<iovec> pieces;
    // Outgoing only: sends the bytes of the run's incoming flow as they arrive.
    bool forwards = false;
  };
  // Blocks until every flow has ended. At most one flow per peer and direction. After an error
  // every connection is closed, and each later run returns that error.
  Result<> run(Subject subject, std::span<const Flow> flows);

  void abort(const Error& why);
  RankPlace place() const { return place_; }

 private:
  class Run;
  std::optional<Error> aborted() const;
  // `quiet`: ranks without a half-sent message. Only these can be sent the error.
  void fail(const Error& why, const std::vector<bool>& quiet);

  const RankPlace place_;
  const std::chrono::milliseconds step_timeout_;
  std::vector<LinkSocket> sockets_;
  std::optional<Error> broken_;
  JoinStop stop_;
  mutable Mutex mutex_;
  std::optional<Error> abort_reason_ CAIRN_GUARDED_BY(mutex_);
};

}  // namespace cairn
