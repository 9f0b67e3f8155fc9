#pragma once

#include <sys/uio.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"
#include "base/unique_function.hpp"
#include "memory/alloc/statistics.hpp"

namespace cairn {

class DeviceMemory;
class DeviceRuntime;
class HostNames;

// As NCCL names them.
enum class DataType : std::uint8_t {
  int8,
  uint8,
  int32,
  uint32,
  int64,
  uint64,
  float16,
  float32,
  float64,
  bfloat16,
};
inline constexpr std::size_t kNumDataTypes = 10;
enum class Reduction : std::uint8_t { sum, prod, max, min, avg };
inline constexpr std::size_t kNumReductions = 5;

std::string_view to_string(DataType type);
std::string_view to_string(Reduction reduction);
std::uint64_t width_bytes(DataType type);

// One rank a GPU or a server: a hundred hosts of eight would still be one group too large to be
// joined by hand over REST, and the mesh of connections grows with the square.
inline constexpr std::uint32_t kMaxWorldSize = 256;

struct RankPlace {
  std::uint32_t rank = 0;
  std::uint32_t world_size = 1;
};

// A rank's part in a group that works together: the same calls in the same order on every rank. The
// bytes are in host memory, those of broadcasts and messages also in a device's where
// takes_device_memory(). A message may lie in many pieces, which need not be the same on both
// sides. Call from one thread at a time; each call blocks until this rank's part of it is done, or
// for the step's deadline.
//
// out_of_range and impossible refuse a call for its arguments and change nothing. After any other
// error the communicator has failed: the other ranks are told, so that their calls fail too, and
// every later call answers the same error. peer_lost: a rank has gone; deadline_exceeded: it did
// not come in time; state_conflict: it is at another call, or at other sizes; cancelled: abort().
// The group is then made anew, with a new unique id.
class Communicator {
 public:
  // Aborts, unless finalize() has run.
  virtual ~Communicator() = default;

  virtual std::string_view name() const = 0;  // "local" or "nccl"
  virtual RankPlace place() const = 0;
  virtual bool takes_device_memory() const { return false; }

  struct Elements {
    std::uint64_t count = 0;
    DataType type = DataType::uint8;

    std::uint64_t size_bytes() const { return count * width_bytes(type); }
  };
  // `destination` on every rank is the reduction of all sources; it may be the source. Whole
  // numbers wrap around, and `avg` of them is cut off towards zero.
  struct AllReduce {
    const std::byte* source = nullptr;
    std::byte* destination = nullptr;
    Elements elements;
    Reduction reduction = Reduction::sum;
  };
  virtual Result<> all_reduce(const AllReduce& call) = 0;

  // Every rank's `elements` end to end, in the order of the ranks.
  struct AllGather {
    const std::byte* source = nullptr;
    std::byte* destination = nullptr;  // world_size times as long
    Elements elements;
  };
  virtual Result<> all_gather(const AllGather& call) = 0;

  // The root's bytes on every rank: read on the root, written on the others.
  struct Broadcast {
    std::uint32_t root = 0;
    std::span<const iovec> pieces;
    // The same on all sides, here and of messages: so many bytes, again and again, are worth a
    // transmission of their own, since they may lie in one piece of a device's memory. 0: none.
    std::uint64_t cut_bytes = 0;
  };
  virtual Result<> broadcast(const Broadcast& call) = 0;

  // Sends and receives that run together, as one group of NCCL's: the n-th send of a rank to
  // another meets the n-th receive there, of the same length. A rank may send to itself.
  struct Message {
    enum class Kind : std::uint8_t { send, receive } kind = Kind::send;
    std::uint32_t peer = 0;
    std::span<const iovec> pieces;
    std::uint64_t cut_bytes = 0;
  };
  virtual Result<> exchange(std::span<const Message> messages) = 0;

  // Waits until every rank has got here; after it the ranks may go one by one.
  virtual Result<> finalize() = 0;

  // Ends a call under way, and fails all later ones, with `why`. From any thread.
  virtual void abort(const Error& why) = 0;
};

// A group's name tag that rank 0 hands to the others, and whatever rank 0 keeps open for them.
// Whoever knows the text may join.
class Invitation {
 public:
  virtual ~Invitation() = default;
  virtual const std::string& unique_id() const = 0;
};

struct JoinRequest {
  RankPlace place;
  int device_id = 0;  // nccl: the rank's GPU
  std::string unique_id = {};
  // Rank 0's own; null for the others.
  std::unique_ptr<Invitation> invitation = {};
  std::chrono::milliseconds join_timeout{30'000};  // until every rank is there
  std::chrono::milliseconds step_timeout{30'000};  // of each call
};

// Tells a join under way to give up. Thread-safe.
class JoinStop {
 public:
  JoinStop();
  ~JoinStop();
  JoinStop(const JoinStop&) = delete;
  JoinStop& operator=(const JoinStop&) = delete;
  void stop();
  bool stopped() const;
  int fd() const { return fd_; }  // readable once stopped

 private:
  int fd_;
};

// A way for ranks to work together. Thread-safe.
class Collectives {
 public:
  virtual ~Collectives() = default;
  virtual std::string_view name() const = 0;  // "local" or "nccl"
  // What its communicators keep their reductions' buffers with.
  virtual std::vector<NamedAllocator> allocators() const { return {}; }

  // For rank 0, before it joins. unavailable where the others could not come; deadline_exceeded,
  // cancelled while a name is looked up.
  virtual Result<std::unique_ptr<Invitation>> invite(std::chrono::milliseconds timeout,
                                                     const JoinStop& stop) = 0;
  // Blocks until every rank is there. `accepted` runs on the way, once nobody but the other ranks
  // is waited for. Errors beside those of calls: malformed for a unique id that is none;
  // out_of_range for a rank that cannot be, rank_taken, state_conflict for another world size than
  // rank 0's, unauthorized for a wrong secret; unavailable where rank 0 cannot be reached.
  virtual Result<std::unique_ptr<Communicator>> join(JoinRequest request, const JoinStop& stop,
                                                     UniqueFunction<void()> accepted) = 0;
};

// Over TCP, host memory only. `host` is the address that this rank listens on, as rank 0 or for the
// ranks above it, and must be one that the others reach.
std::unique_ptr<Collectives> make_local_collectives(std::string host);
std::unique_ptr<Collectives> make_local_collectives(std::string host, HostNames names);
// NVIDIA's library, one rank a GPU of the runtime's. Borrows both. `unavailable`, with the reason,
// where the program was built without it or no device answers.
Result<std::unique_ptr<Collectives>> make_nccl_collectives(DeviceRuntime& runtime,
                                                           DeviceMemory& memory);

// The kind of collectives that made a unique id: "local", "nccl", or empty for none of them.
std::string_view kind_of_unique_id(std::string_view unique_id);

}  // namespace cairn
