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

// One rank's connections to all others, and messages over many of them at once. A message is a head
// (what it belongs to, how long it is) and its bytes, straight from and to the caller's memory.
// run() from one thread at a time; abort() from any.
class PeerLinks {
 public:
  // `sockets`: one a rank, this rank's own empty.
  PeerLinks(RankPlace place, std::vector<LinkSocket> sockets,
            std::chrono::milliseconds step_timeout);
  // As if aborted.
  ~PeerLinks();
  PeerLinks(const PeerLinks&) = delete;
  PeerLinks& operator=(const PeerLinks&) = delete;

  // What a message belongs to: both sides must say the same, or one of them is at another call.
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
    // An outgoing one whose bytes are those of the run's incoming one: it goes as far as that has
    // come.
    bool forwards = false;
  };
  // Blocks until every flow has ended. At most one each way with a peer. After an error every
  // connection is closed, and each later run answers it.
  Result<> run(Subject subject, std::span<const Flow> flows);

  void abort(const Error& why);
  RankPlace place() const { return place_; }

 private:
  class Run;
  std::optional<Error> aborted() const;
  // `quiet`: the ranks to which no message is half sent, and who can be told why.
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
