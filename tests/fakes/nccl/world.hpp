#pragma once

#include <nccl.h>

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <utility>
#include <vector>

namespace cairn::fakes {

// What a rank asks of a collective, which must be the same on all ranks.
struct CollectiveCall {
  enum class Kind : std::uint8_t { all_reduce, all_gather, broadcast } kind = Kind::all_reduce;
  std::size_t count = 0;
  ncclDataType_t type = ncclUint8;
  int detail = 0;  // the root, or the reduction

  friend bool operator==(const CollectiveCall&, const CollectiveCall&) = default;
};

// A rank's buffers in a call, where the bytes really are.
struct CallBuffers {
  const std::byte* source = nullptr;
  std::byte* destination = nullptr;
};

struct PeerMessage {
  bool out = false;
  int peer = 0;
  std::byte* bytes = nullptr;
  std::size_t size_bytes = 0;
};

// The ranks of one unique id, all in this process. Streams' threads meet here: each call waits
// until every rank is there, late at random. A rank that is lost, or at another call than the
// others, is an error of all. Thread-safe.
class World {
 public:
  World(int size, std::uint64_t seed) : size_(size), ranks_(static_cast<std::size_t>(size)) {
    random_.seed(seed);
  }

  int size() const { return size_; }
  // False where the rank cannot be or is there already.
  bool enter(int rank, int size);
  // The rank's state: in progress until all are there, then success, or its first error.
  ncclResult_t state(int rank);
  // It goes in the middle: whoever needs it fails.
  void lose(int rank);
  void leave(int rank);
  // Fails this rank's calls from now on, as an asynchronous error does.
  void fail(int rank, ncclResult_t error);

  // On a stream's thread. Return at once where the rank has failed.
  void meet(int rank, const CollectiveCall& call, const CallBuffers& buffers);
  void exchange(int rank, const std::vector<PeerMessage>& messages);

 private:
  struct Rank {
    bool here = false;
    bool left = false;
    ncclResult_t error = ncclSuccess;
    std::uint64_t calls = 0;
  };
  struct Round {
    std::vector<std::optional<CallBuffers>> ranks;
    std::optional<CollectiveCall> call;
    std::size_t present = 0;
    bool ended = false;
  };
  struct Post {
    const PeerMessage* message = nullptr;
    bool taken = false;
  };
  Rank& at(int rank) { return ranks_[static_cast<std::size_t>(rank)]; }
  bool all_here() const;
  void fail_all(ncclResult_t error);
  void move(const Round& round) const;
  void be_late(std::unique_lock<std::mutex>& lock);

  std::mutex mutex_;
  std::condition_variable changed_;
  const int size_;
  std::mt19937_64 random_;
  std::vector<Rank> ranks_;
  std::map<std::uint64_t, std::shared_ptr<Round>> rounds_;                  // by their number
  std::map<std::pair<int, int>, std::deque<std::shared_ptr<Post>>> posts_;  // from, to
};

}  // namespace cairn::fakes
