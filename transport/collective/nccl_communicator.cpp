#include "transport/collective/nccl_communicator.hpp"

#include <algorithm>
#include <string>
#include <thread>

#include "transport/collective/pieces.hpp"

namespace cairn {
namespace {

// As NCCL numbers them.
static_assert(static_cast<int>(DataType::int8) == ncclInt8);
static_assert(static_cast<int>(DataType::uint64) == ncclUint64);
static_assert(static_cast<int>(DataType::float16) == ncclFloat16);
static_assert(static_cast<int>(DataType::float64) == ncclFloat64);
static_assert(static_cast<int>(DataType::bfloat16) == ncclBfloat16);
static_assert(static_cast<int>(Reduction::sum) == ncclSum);
static_assert(static_cast<int>(Reduction::min) == ncclMin);
static_assert(static_cast<int>(Reduction::avg) == ncclAvg);

ncclDataType_t nccl_type(DataType type) { return static_cast<ncclDataType_t>(type); }

// A call of 8 MiB takes hundreds of microseconds.
constexpr std::chrono::microseconds kPollInterval{20};
// NCCL wants its buffers aligned for wide loads.
constexpr std::uint64_t kAlignment = 512;
// The buffer grows in steps of a piece.
constexpr std::uint64_t kGrowthBytes = 8ull << 20;

std::uint64_t aligned(std::uint64_t bytes) { return (bytes + kAlignment - 1) & ~(kAlignment - 1); }

Result<> cuda(const char* call, cudaError_t outcome) {
  if (outcome == cudaSuccess) return {};
  static_cast<void>(cudaGetLastError());
  return Error{ErrorCode::device_error, std::string(call) + ": " + cudaGetErrorString(outcome)};
}

}  // namespace

Result<std::unique_ptr<NcclCommunicator>> NcclCommunicator::open(const NcclLibrary& library,
                                                                 const JoinRequest& request) {
  std::unique_ptr<NcclCommunicator> made(new NcclCommunicator(library, request));
  CAIRN_TRY(cuda("cudaSetDevice", cudaSetDevice(made->device_id_)));
  CAIRN_TRY(cuda("cudaStreamCreateWithFlags",
                 cudaStreamCreateWithFlags(&made->stream_, cudaStreamNonBlocking)));
  CAIRN_TRY(cuda("cudaEventCreateWithFlags",
                 cudaEventCreateWithFlags(&made->event_, cudaEventDisableTiming)));
  return made;
}

NcclCommunicator::~NcclCommunicator() {
  static_cast<void>(cudaSetDevice(device_id_));
  if (comm_ != nullptr) nccl_.comm_abort(comm_);
  // What a device still works on is nobody else's, ever.
  if (!ends_in_time()) return;
  if (stream_ != nullptr) static_cast<void>(cudaStreamDestroy(stream_));
  if (event_ != nullptr) static_cast<void>(cudaEventDestroy(event_));
  if (buffer_ != nullptr) static_cast<void>(cudaFree(buffer_));
  static_cast<void>(cudaGetLastError());
}

Result<> NcclCommunicator::join(const ncclUniqueId& id, std::chrono::milliseconds timeout,
                                const JoinStop& stop) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  const ncclResult_t begun = nccl_.comm_init_rank_config(
      &comm_, static_cast<int>(place_.world_size), id, static_cast<int>(place_.rank), &config);
  auto joined = wait_for_nccl("ncclCommInitRankConfig", begun,
                              std::chrono::steady_clock::now() + timeout, &stop);
  if (!joined) return break_down(joined.error());
  return {};
}

Result<> NcclCommunicator::check_rank(std::uint32_t rank, std::string_view what) const {
  if (rank < place_.world_size) return {};
  return Error{ErrorCode::out_of_range, std::string(what) + " is " + std::to_string(rank) +
                                            ", not below " + std::to_string(place_.world_size)};
}

Result<> NcclCommunicator::check_going(Until until, const std::string& what) const {
  if (aborted_.load(std::memory_order_relaxed)) {
    MutexLock lock(mutex_);
    return *abort_reason_;
  }
  if (std::chrono::steady_clock::now() < until) return {};
  return Error{ErrorCode::deadline_exceeded, what + ": the other ranks did not answer in time"};
}

Result<> NcclCommunicator::wait_for_nccl(const std::string& what, ncclResult_t issued, Until until,
                                         const JoinStop* stop) {
  ncclResult_t state = issued;
  while (state == ncclInProgress) {
    CAIRN_TRY(check_going(until, what));
    if (stop != nullptr && stop->stopped()) return Error{ErrorCode::cancelled, "stopped"};
    std::this_thread::sleep_for(kPollInterval);
    const ncclResult_t asked = nccl_.comm_get_async_error(comm_, &state);
    if (asked != ncclSuccess) return nccl_.error("ncclCommGetAsyncError", asked);
  }
  if (state != ncclSuccess) return nccl_.error(what, state);
  return {};
}

Result<> NcclCommunicator::wait_for_stream(const std::string& what, Until until) {
  CAIRN_TRY(cuda("cudaEventRecord", cudaEventRecord(event_, stream_)));
  while (true) {
    const cudaError_t state = cudaEventQuery(event_);
    // NotReady is kept as the thread's last error, and is none.
    if (state == cudaErrorNotReady) static_cast<void>(cudaGetLastError());
    if (state != cudaSuccess && state != cudaErrorNotReady) return cuda("cudaEventQuery", state);
    // Also once the stream is done: it gets to its end where NCCL gave up.
    ncclResult_t nccl_state = ncclSuccess;
    const ncclResult_t asked = nccl_.comm_get_async_error(comm_, &nccl_state);
    if (asked != ncclSuccess) return nccl_.error("ncclCommGetAsyncError", asked);
    if (nccl_state != ncclSuccess && nccl_state != ncclInProgress) {
      return nccl_.error(what, nccl_state);
    }
    if (state == cudaSuccess) return {};
    CAIRN_TRY(check_going(until, what));
    std::this_thread::sleep_for(kPollInterval);
  }
}

Result<> NcclCommunicator::reserve(std::uint64_t size_bytes) {
  if (size_bytes <= buffer_bytes_) return {};
  if (buffer_ != nullptr) {
    CAIRN_TRY(cuda("cudaFree", cudaFree(buffer_)));
    buffer_ = nullptr;
    buffer_bytes_ = 0;
  }
  const std::uint64_t wanted = (size_bytes + kGrowthBytes - 1) / kGrowthBytes * kGrowthBytes;
  void* memory = nullptr;
  CAIRN_TRY(cuda("cudaMalloc", cudaMalloc(&memory, wanted)));
  buffer_ = static_cast<std::byte*>(memory);
  buffer_bytes_ = wanted;
  return {};
}

Result<> NcclCommunicator::copy(const Transit& transit, bool up) {
  std::byte* device = buffer_ + transit.offset_bytes;
  for (const iovec& piece : transit.pieces) {
    if (piece.iov_len == 0) continue;
    void* const host = piece.iov_base;
    CAIRN_TRY(cuda("cudaMemcpyAsync", cudaMemcpyAsync(up ? device : host, up ? host : device,
                                                      piece.iov_len, cudaMemcpyDefault, stream_)));
    device += piece.iov_len;
  }
  return {};
}

Result<> NcclCommunicator::run(const std::string& what, std::span<const Transit> transits,
                               const std::function<ncclResult_t()>& issue) {
  if (broken_) return *broken_;
  auto done = steps(what, transits, issue);
  if (!done) return break_down(done.error());
  return {};
}

Result<> NcclCommunicator::steps(const std::string& what, std::span<const Transit> transits,
                                 const std::function<ncclResult_t()>& issue) {
  const Until until = std::chrono::steady_clock::now() + step_timeout_;
  CAIRN_TRY(check_going(until, what));
  CAIRN_TRY(cuda("cudaSetDevice", cudaSetDevice(device_id_)));
  std::uint64_t needed = 0;
  for (const Transit& transit : transits) {
    needed = std::max(needed, transit.offset_bytes + total_bytes(transit.pieces));
  }
  // A call of no bytes still needs an address.
  CAIRN_TRY(reserve(std::max(needed, kAlignment)));
  for (const Transit& transit : transits) {
    if (transit.up) CAIRN_TRY(copy(transit, true));
  }
  CAIRN_TRY(wait_for_nccl(what, issue(), until, nullptr));
  CAIRN_TRY(wait_for_stream(what, until));
  // Only now: a copy down to memory that is not pinned waits for all before it, without a bound.
  for (const Transit& transit : transits) {
    if (!transit.down) continue;
    copies_down_ = true;
    CAIRN_TRY(copy(transit, false));
  }
  CAIRN_TRY(wait_for_stream(what, until));
  copies_down_ = false;
  return {};
}

Error NcclCommunicator::break_down(const Error& why) {
  broken_ = why;
  if (comm_ != nullptr) nccl_.comm_abort(comm_);
  comm_ = nullptr;
  if (ends_in_time()) return why;
  if (copies_down_) {
    // It would write into memory that is somebody else's by then: there is no deadline for that.
    static_cast<void>(cudaStreamSynchronize(stream_));
    return why;
  }
  broken_ =
      Error{ErrorCode::device_error, why.detail + "; and the device did not end its work within " +
                                         std::to_string(step_timeout_.count()) + " ms"};
  return *broken_;
}

bool NcclCommunicator::ends_in_time() const {
  const Until until = std::chrono::steady_clock::now() + step_timeout_;
  while (stream_ != nullptr && cudaStreamQuery(stream_) == cudaErrorNotReady) {
    static_cast<void>(cudaGetLastError());
    if (std::chrono::steady_clock::now() >= until) return false;
    std::this_thread::sleep_for(kPollInterval);
  }
  return true;
}

Result<> NcclCommunicator::all_reduce(const AllReduce& call) {
  const std::uint64_t size = call.elements.size_bytes();
  const iovec source = piece_of(call.source, size);
  const iovec destination = piece_of(call.destination, size);
  const std::array<Transit, 2> transits = {
      {{.pieces = {&source, 1}, .up = true}, {.pieces = {&destination, 1}, .down = true}}};
  return run("ncclAllReduce", transits, [&] {
    return nccl_.all_reduce(buffer_, buffer_, call.elements.count, nccl_type(call.elements.type),
                            static_cast<ncclRedOp_t>(call.reduction), comm_, stream_);
  });
}

Result<> NcclCommunicator::all_gather(const AllGather& call) {
  const std::uint64_t size = call.elements.size_bytes();
  const iovec source = piece_of(call.source, size);
  const iovec destination = piece_of(call.destination, size * place_.world_size);
  const std::uint64_t gathered = aligned(size);
  const std::array<Transit, 2> transits = {
      {{.pieces = {&source, 1}, .up = true},
       {.pieces = {&destination, 1}, .offset_bytes = gathered, .down = true}}};
  return run("ncclAllGather", transits, [&] {
    return nccl_.all_gather(buffer_, buffer_ + gathered, call.elements.count,
                            nccl_type(call.elements.type), comm_, stream_);
  });
}

Result<> NcclCommunicator::broadcast(const Broadcast& call) {
  CAIRN_TRY(check_rank(call.root, "root"));
  const bool root = call.root == place_.rank;
  const Transit transit{.pieces = call.pieces, .up = root, .down = !root};
  return run("ncclBroadcast", {&transit, 1}, [&] {
    return nccl_.broadcast(buffer_, buffer_, total_bytes(call.pieces), ncclUint8,
                           static_cast<int>(call.root), comm_, stream_);
  });
}

Result<> NcclCommunicator::exchange(std::span<const Message> messages) {
  std::vector<Transit> transits;
  std::uint64_t offset = 0;
  std::int64_t to_itself = 0;
  for (const Message& message : messages) {
    CAIRN_TRY(check_rank(message.peer, "peer"));
    const bool out = message.kind == Message::Kind::send;
    transits.push_back({.pieces = message.pieces, .offset_bytes = offset, .up = out, .down = !out});
    const std::uint64_t size = total_bytes(message.pieces);
    if (message.peer == place_.rank) to_itself += static_cast<std::int64_t>(size) * (out ? 1 : -1);
    offset += aligned(size);
  }
  if (to_itself != 0) {
    return Error{ErrorCode::impossible, "rank " + std::to_string(place_.rank) +
                                            " does not receive from itself what it sends itself"};
  }
  return run("ncclSend and ncclRecv", transits, [&] {
    ncclResult_t outcome = nccl_.group_start();
    for (std::size_t i = 0; i < messages.size() && outcome == ncclSuccess; ++i) {
      std::byte* const at = buffer_ + transits[i].offset_bytes;
      const std::uint64_t size = total_bytes(messages[i].pieces);
      const int peer = static_cast<int>(messages[i].peer);
      outcome = transits[i].up ? nccl_.send(at, size, ncclUint8, peer, comm_, stream_)
                               : nccl_.recv(at, size, ncclUint8, peer, comm_, stream_);
      if (outcome == ncclInProgress) outcome = ncclSuccess;
    }
    const ncclResult_t ended = nccl_.group_end();
    return outcome == ncclSuccess ? ended : outcome;
  });
}

// A reduction is the barrier: NCCL's own finalize does not wait for the other ranks.
Result<> NcclCommunicator::finalize() {
  std::byte token{};
  CAIRN_TRY(all_reduce({.source = &token, .destination = &token, .elements = {.count = 1}}));
  const Until until = std::chrono::steady_clock::now() + step_timeout_;
  auto ended = wait_for_nccl("ncclCommFinalize", nccl_.comm_finalize(comm_), until, nullptr);
  if (!ended) return break_down(ended.error());
  const ncclResult_t destroyed = nccl_.comm_destroy(comm_);
  comm_ = nullptr;
  broken_ = Error{ErrorCode::cancelled, "the communicator was finalized"};
  if (destroyed != ncclSuccess) return nccl_.error("ncclCommDestroy", destroyed);
  return {};
}

void NcclCommunicator::abort(const Error& why) {
  MutexLock lock(mutex_);
  if (!abort_reason_) abort_reason_ = why;
  aborted_ = true;
}

}  // namespace cairn
