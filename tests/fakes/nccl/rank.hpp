#pragma once

#include <nccl.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "transport/collective/communicator.hpp"

namespace cairn::fakes {

// A stream's work for a rank, on the bytes' real places: one collective at a time, or sends and
// receives together.
struct RankCall {
  enum class Kind : std::uint8_t {
    all_reduce,
    all_gather,
    broadcast,
    send,
    receive,
  } kind = Kind::all_reduce;
  const std::byte* source = nullptr;
  std::byte* destination = nullptr;
  Communicator::Elements elements = {};
  int detail = 0;  // the root, the reduction or the peer
};

// A rank of a fake communicator. It meets the others over sockets, in this process or in others,
// and joins on its own thread. Each call has a random delay. A rank that is lost, or in another
// call than the others, is an error for all. Thread-safe.
class Rank {
 public:
  Rank(Collectives& sockets, JoinRequest request);
  // The others get an error, unless it was finalized.
  ~Rank();
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;

  int world_size() const { return world_size_; }
  // In progress until all ranks have joined, and while it is being finalized. The first error
  // stays.
  ncclResult_t state() const;
  void fail(ncclResult_t error);
  void abort();
  void finalize();

  // Called on a stream's thread. Returns at once if the rank has failed.
  void run(const std::vector<RankCall>& calls);

 private:
  Result<> meet(const RankCall& call);
  Result<> exchange(const std::vector<RankCall>& calls);
  void join(Collectives& sockets, JoinRequest request);
  void failed(const Error& error);
  void be_late();

  const int world_size_;
  JoinStop stop_;
  mutable std::mutex mutex_;
  ncclResult_t state_ = ncclInProgress;
  bool aborted_ = false;
  std::unique_ptr<Communicator> communicator_;  // once all ranks have joined
  std::mutex working_;                          // one user of the communicator at a time
  std::mt19937_64 random_;
  std::thread thread_;  // joins, then finalizes
};

}  // namespace cairn::fakes
