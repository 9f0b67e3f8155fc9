#include "transport/collective/nccl_communicator.hpp"

#include <algorithm>
#include <string>
#include <thread>

#include "base/pieces.hpp"

namespace cairn {
namespace {

// Same values as NCCL's enums.
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

}  // namespace

Result<std::unique_ptr<NcclCommunicator>> NcclCommunicator::open(const NcclGround& ground,
                                                                 const JoinRequest& request) {
  auto workplace = NcclWorkplace::open(ground, request.device_id);
  if (!workplace) return std::move(workplace).error();
  return std::unique_ptr<NcclCommunicator>(
      new NcclCommunicator(ground, request, std::move(*workplace)));
}

NcclCommunicator::~NcclCommunicator() {
  if (workplace_) stop_device();
}

Result<> NcclCommunicator::join(const ncclUniqueId& id, std::chrono::milliseconds timeout,
                                const JoinStop& stop) {
  // NCCL uses the thread's current device.
  if (const cudaError_t entered = cudaSetDevice(device_id_); entered != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
    return break_down(
        {ErrorCode::device_error, std::string("cudaSetDevice: ") + cudaGetErrorString(entered)});
  }
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
  const auto event = workplace_->record();
  if (!event) return event.error();
  while (true) {
    const auto ready = (*event)->ready();
    if (!ready) return ready.error();
    // Check it even if the stream is done: the stream also ends when NCCL gives up.
    ncclResult_t nccl_state = ncclSuccess;
    const ncclResult_t asked = nccl_.comm_get_async_error(comm_, &nccl_state);
    if (asked != ncclSuccess) return nccl_.error("ncclCommGetAsyncError", asked);
    if (nccl_state != ncclSuccess && nccl_state != ncclInProgress) {
      return nccl_.error(what, nccl_state);
    }
    if (*ready) return {};
    CAIRN_TRY(check_going(until, what));
    std::this_thread::sleep_for(kPollInterval);
  }
}

Result<> NcclCommunicator::run(const Step& step) {
  if (broken_) return *broken_;
  auto done = take(step);
  if (!done) return break_down(done.error());
  return {};
}

Result<> NcclCommunicator::take(const Step& step) {
  const Until until = std::chrono::steady_clock::now() + step_timeout_;
  CAIRN_TRY(check_going(until, step.what));
  workplace_->begin();
  CAIRN_TRY(step.lay_out(*workplace_));
  CAIRN_TRY(workplace_->go_up());
  CAIRN_TRY(wait_for_nccl(step.what, step.issue(*workplace_), until, nullptr));
  CAIRN_TRY(wait_for_stream(step.what, until));
  const auto copies = workplace_->go_down();
  if (!copies) return copies.error();
  if (*copies) CAIRN_TRY(wait_for_stream(step.what, until));
  workplace_->deliver();
  return {};
}

ncclResult_t NcclCommunicator::grouped(const std::function<ncclResult_t(std::size_t part)>& issue) {
  ncclResult_t outcome = nccl_.group_start();
  if (outcome != ncclSuccess) return outcome;
  for (std::size_t i = 0; i < workplace_->parts() && outcome == ncclSuccess; ++i) {
    outcome = issue(i);
    if (outcome == ncclInProgress) outcome = ncclSuccess;
  }
  const ncclResult_t ended = nccl_.group_end();
  return outcome == ncclSuccess ? ended : outcome;
}

Error NcclCommunicator::break_down(const Error& why) {
  broken_ = why;
  if (!stop_device()) {
    broken_ = Error{ErrorCode::device_error, why.detail +
                                                 "; and the device did not end its work within " +
                                                 std::to_string(step_timeout_.count()) + " ms"};
  }
  return *broken_;
}

bool NcclCommunicator::stop_device() {
  if (comm_ != nullptr) nccl_.comm_abort(comm_);
  comm_ = nullptr;
  const Until until = std::chrono::steady_clock::now() + step_timeout_;
  while (cudaStreamQuery(workplace_->stream()) == cudaErrorNotReady) {
    static_cast<void>(cudaGetLastError());  // clears the thread's last error: not ready is none
    if (std::chrono::steady_clock::now() >= until) {
      ground_.runtime.declare_lost(device_id_, "it did not end the work of a group within " +
                                                   std::to_string(step_timeout_.count()) + " ms");
      ground_.left_behind.take(std::move(workplace_));
      return false;
    }
    std::this_thread::sleep_for(kPollInterval);
  }
  static_cast<void>(cudaGetLastError());
  // NCCL does not distinguish device errors; asking the runtime lets it notice a fatal one.
  if (const auto asked = workplace_->record()) static_cast<void>((*asked)->ready());
  return true;
}

Result<> NcclCommunicator::all_reduce(const AllReduce& call) {
  const std::uint64_t size = call.elements.size_bytes();
  const iovec source = piece_of(call.source, size);
  const iovec destination = piece_of(call.destination, size);
  return run({.what = "ncclAllReduce",
              .lay_out = [&](NcclWorkplace& at) -> Result<> {
                const auto buffer = at.reduction_buffer(call);
                if (!buffer) return buffer.error();
                at.add_at(*buffer, {&source, 1}, {.up = true});
                at.add_at(*buffer, {&destination, 1}, {.down = true});
                return {};
              },
              .issue =
                  [&](NcclWorkplace& at) {
                    return nccl_.all_reduce(
                        at.data(0), at.data(1), call.elements.count, nccl_type(call.elements.type),
                        static_cast<ncclRedOp_t>(call.reduction), comm_, at.stream());
                  }});
}

Result<> NcclCommunicator::all_gather(const AllGather& call) {
  const std::uint64_t size = call.elements.size_bytes();
  const iovec source = piece_of(call.source, size);
  const iovec destination = piece_of(call.destination, size * place_.world_size);
  return run({.what = "ncclAllGather",
              .lay_out = [&](NcclWorkplace& at) -> Result<> {
                at.add({&source, 1}, {.up = true}, 0);
                at.add({&destination, 1}, {.down = true}, 0);
                return {};
              },
              .issue =
                  [&](NcclWorkplace& at) {
                    return nccl_.all_gather(at.data(0), at.data(1), call.elements.count,
                                            nccl_type(call.elements.type), comm_, at.stream());
                  }});
}

Result<> NcclCommunicator::broadcast(const Broadcast& call) {
  CAIRN_TRY(check_rank(call.root, "root"));
  const bool root = call.root == place_.rank;
  return run({.what = "ncclBroadcast",
              .lay_out = [&](NcclWorkplace& at) -> Result<> {
                at.add(call.pieces, {.up = root, .down = !root}, call.cut_bytes);
                return {};
              },
              .issue =
                  [&](NcclWorkplace& at) {
                    return grouped([&](std::size_t i) {
                      return nccl_.broadcast(at.data(i), at.data(i), at.size_bytes(i), ncclUint8,
                                             static_cast<int>(call.root), comm_, at.stream());
                    });
                  }});
}

Result<> NcclCommunicator::exchange(std::span<const Message> messages) {
  std::int64_t to_itself = 0;
  for (const Message& message : messages) {
    CAIRN_TRY(check_rank(message.peer, "peer"));
    if (message.peer != place_.rank) continue;
    const auto size = static_cast<std::int64_t>(total_bytes(message.pieces));
    to_itself += message.kind == Message::Kind::send ? size : -size;
  }
  if (to_itself != 0) {
    return Error{ErrorCode::impossible, "rank " + std::to_string(place_.rank) +
                                            " does not receive from itself what it sends itself"};
  }
  std::vector<const Message*> of_part;
  return run({.what = "ncclSend and ncclRecv",
              .lay_out = [&](NcclWorkplace& at) -> Result<> {
                for (const Message& message : messages) {
                  const bool out = message.kind == Message::Kind::send;
                  at.add(message.pieces, {.up = out, .down = !out}, message.cut_bytes);
                  of_part.resize(at.parts(), &message);
                }
                return {};
              },
              .issue =
                  [&](NcclWorkplace& at) {
                    return grouped([&](std::size_t i) {
                      const int peer = static_cast<int>(of_part[i]->peer);
                      const bool out = of_part[i]->kind == Message::Kind::send;
                      return out ? nccl_.send(at.data(i), at.size_bytes(i), ncclUint8, peer, comm_,
                                              at.stream())
                                 : nccl_.recv(at.data(i), at.size_bytes(i), ncclUint8, peer, comm_,
                                              at.stream());
                    });
                  }});
}

// A reduction serves as barrier: NCCL's finalize does not wait for the other ranks.
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
