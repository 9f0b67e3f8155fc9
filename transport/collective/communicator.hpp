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

// NCCL's names.
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

// One rank per GPU or server. A larger group could not be joined by hand over REST, and the number
// of connections grows with the square of the ranks.
inline constexpr std::uint32_t kMaxWorldSize = 256;

struct RankPlace {
  std::uint32_t rank = 0;
  std::uint32_t world_size = 1;
};

// One rank of a group. All ranks make the same calls in the same order. Not thread-safe, except
// abort().
// - Each call blocks until this rank's part is done or the step timeout expires.
// - Buffers are in host memory. broadcast() and exchange() also take device memory if
//   takes_device_memory().
// - A message may consist of many pieces; sender and receiver may cut it differently.
//
// Errors:
// - out_of_range, impossible: invalid arguments; nothing has changed.
// - peer_lost: a rank has gone.
// - deadline_exceeded: a rank did not answer in time.
// - state_conflict: a rank made another call, or used other sizes.
// - cancelled: abort() was called.
// After any error but out_of_range and impossible the communicator is broken: the other ranks get
// the error too, and every later call returns it. Make a new group, with a new unique id.
class Communicator {
 public:
  // Aborts if finalize() has not run.
  virtual ~Communicator() = default;

  virtual std::string_view name() const = 0;  // "local" or "nccl"
  virtual RankPlace place() const = 0;
  virtual bool takes_device_memory() const { return false; }

  struct Elements {
    std::uint64_t count = 0;
    DataType type = DataType::uint8;

    std::uint64_t size_bytes() const { return count * width_bytes(type); }
  };
  // Writes the reduction of all ranks' sources to `destination`, which may be the same as `source`.
  // Integers wrap around; `avg` of integers rounds towards zero.
  struct AllReduce {
    const std::byte* source = nullptr;
    std::byte* destination = nullptr;
    Elements elements;
    Reduction reduction = Reduction::sum;
  };
  virtual Result<> all_reduce(const AllReduce& call) = 0;

  // Concatenates every rank's `elements`, ordered by rank.
  struct AllGather {
    const std::byte* source = nullptr;
    std::byte* destination = nullptr;  // world_size times the size of `source`
    Elements elements;
  };
  virtual Result<> all_gather(const AllGather& call) = 0;

  // Copies the root's pieces to the pieces of every other rank.
  struct Broadcast {
    std::uint32_t root = 0;
    std::span<const iovec> pieces;
    // Transfer size if the pieces may be in device memory: each `cut_bytes` are one transfer,
    // because they may be contiguous there. 0: one transfer. Must be equal on all ranks, here and
    // in Message.
    std::uint64_t cut_bytes = 0;
  };
  virtual Result<> broadcast(const Broadcast& call) = 0;

  // Runs sends and receives together, like a group in NCCL. The n-th send from one rank to another
  // matches the n-th receive there and has the same length. A rank may send to itself.
  struct Message {
    enum class Kind : std::uint8_t { send, receive } kind = Kind::send;
    std::uint32_t peer = 0;
    std::span<const iovec> pieces;
    std::uint64_t cut_bytes = 0;
  };
  virtual Result<> exchange(std::span<const Message> messages) = 0;

  // Waits until every rank has called it. Afterwards each rank may leave.
  virtual Result<> finalize() = 0;

  // Fails the current call and all later ones with `why`. Thread-safe.
  virtual void abort(const Error& why) = 0;
};

// Owned by rank 0 until it joins: the group's unique id, and what rank 0 keeps open for the others.
// Anyone who knows the unique id may join.
class Invitation {
 public:
  virtual ~Invitation() = default;
  virtual const std::string& unique_id() const = 0;
};

struct JoinRequest {
  RankPlace place;
  int device_id = 0;  // nccl: the rank's GPU
  std::string unique_id = {};
  // Set on rank 0, null on the others.
  std::unique_ptr<Invitation> invitation = {};
  std::chrono::milliseconds join_timeout{30'000};  // until every rank has joined
  std::chrono::milliseconds step_timeout{30'000};  // for each call
};

// Cancels a join in progress. Thread-safe.
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

// Creates communicators. Thread-safe.
class Collectives {
 public:
  virtual ~Collectives() = default;
  virtual std::string_view name() const = 0;  // "local" or "nccl"
  // Statistics of the allocators that hold the reduction buffers.
  virtual std::vector<NamedAllocator> allocators() const { return {}; }

  // Call on rank 0, before join(). Errors: unavailable if the other ranks could not connect;
  // deadline_exceeded or cancelled during a name lookup.
  virtual Result<std::unique_ptr<Invitation>> invite(std::chrono::milliseconds timeout,
                                                     const JoinStop& stop) = 0;
  // Blocks until every rank has joined. Calls `accepted` once it only waits for the other ranks.
  // Errors, in addition to Communicator's:
  // - malformed: invalid unique id.
  // - out_of_range: invalid rank.
  // - rank_taken: another process has joined with this rank.
  // - state_conflict: rank 0 has another world size.
  // - unauthorized: wrong secret.
  // - unavailable: rank 0 cannot be reached.
  virtual Result<std::unique_ptr<Communicator>> join(JoinRequest request, const JoinStop& stop,
                                                     UniqueFunction<void()> accepted) = 0;
};

// Uses TCP; host memory only. This rank listens on `host`, which the other ranks must be able to
// reach.
std::unique_ptr<Collectives> make_local_collectives(std::string host);
std::unique_ptr<Collectives> make_local_collectives(std::string host, HostNames names);
// Uses NCCL, one rank per GPU of the runtime. Borrows both. Returns unavailable, with the reason,
// if the program was built without NCCL or no device responds.
Result<std::unique_ptr<Collectives>> make_nccl_collectives(DeviceRuntime& runtime,
                                                           DeviceMemory& memory);

// The collectives that made a unique id: "local", "nccl", or empty if unknown.
std::string_view kind_of_unique_id(std::string_view unique_id);

}  // namespace cairn
