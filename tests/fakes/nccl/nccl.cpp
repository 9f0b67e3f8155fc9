// NCCL for ranks of one process, on the fake CUDA runtime. See World for what it does to its users;
// beside that it takes no NULL stream, no memory but a device's, no blocking communicator, and any
// call fails on demand.
#include <cuda_runtime_api.h>
#include <nccl.h>

#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tests/fakes/nccl/world.hpp"
#include "transport/collective/communicator.hpp"

extern "C" void* cairn_fake_device_bytes(const void* address, std::size_t size_bytes);

struct ncclComm {
  std::shared_ptr<cairn::fakes::World> world;
  int rank = 0;
  bool finalized = false;
};

namespace {

using cairn::fakes::CallBuffers;
using cairn::fakes::CollectiveCall;
using cairn::fakes::PeerMessage;
using cairn::fakes::World;

struct Library {
  std::mutex mutex;
  std::map<std::string, std::shared_ptr<World>> worlds;  // by unique id
  std::uint64_t ids = 0;
  std::size_t alive = 0;
  std::string failing;
  std::uint64_t fails_in = 0;
  ncclResult_t failure = ncclSuccess;
  std::map<std::string, std::uint64_t> calls;
};
Library& library() {
  static Library one;
  return one;
}

ncclResult_t planned(const char* call) {
  Library& all = library();
  const std::lock_guard lock(all.mutex);
  ++all.calls[call];
  if (all.fails_in == 0 || all.failing != call || --all.fails_in > 0) return ncclSuccess;
  return all.failure;
}

// What a stream does for a rank. Owned by the stream.
struct Work {
  std::shared_ptr<World> world;
  int rank = 0;
  bool collective = false;
  CollectiveCall call;
  CallBuffers buffers;
  std::vector<PeerMessage> messages;
};

void run(void* argument) {
  const std::unique_ptr<Work> work(static_cast<Work*>(argument));
  if (work->collective) {
    work->world->meet(work->rank, work->call, work->buffers);
  } else {
    work->world->exchange(work->rank, work->messages);
  }
}

ncclResult_t launch(cudaStream_t stream, Work work) {
  auto owned = std::make_unique<Work>(std::move(work));
  if (cudaLaunchHostFunc(stream, run, owned.get()) != cudaSuccess) return ncclUnhandledCudaError;
  static_cast<void>(owned.release());
  return ncclSuccess;
}

// A group of sends and receives of the calling thread.
struct OpenGroup {
  int depth = 0;
  ncclComm_t comm = nullptr;
  cudaStream_t stream = nullptr;
  std::vector<PeerMessage> messages;
  ncclResult_t error = ncclSuccess;
};
OpenGroup& open_group() {
  thread_local OpenGroup group;
  return group;
}

bool known(ncclDataType_t type) { return type >= ncclInt8 && type <= ncclBfloat16; }

std::size_t bytes_of(std::size_t count, ncclDataType_t type) {
  return count * cairn::width_bytes(static_cast<cairn::DataType>(type));
}

struct Buffers {
  const void* source;
  std::size_t source_bytes;
  void* destination;
  std::size_t destination_bytes;
};

ncclResult_t collective(const char* name, const Buffers& buffers, const CollectiveCall& call,
                        ncclComm_t comm, cudaStream_t stream) {
  if (const ncclResult_t failure = planned(name); failure != ncclSuccess) return failure;
  if (comm == nullptr || stream == nullptr || !known(call.type)) return ncclInvalidArgument;
  if (open_group().depth > 0) return ncclInvalidUsage;
  const ncclResult_t state = comm->world->state(comm->rank);
  if (state != ncclSuccess) return state == ncclInProgress ? ncclInvalidUsage : state;
  auto* const source =
      static_cast<std::byte*>(cairn_fake_device_bytes(buffers.source, buffers.source_bytes));
  auto* const destination = static_cast<std::byte*>(
      cairn_fake_device_bytes(buffers.destination, buffers.destination_bytes));
  if (source == nullptr || destination == nullptr) return ncclInvalidArgument;
  return launch(stream, {.world = comm->world,
                         .rank = comm->rank,
                         .collective = true,
                         .call = call,
                         .buffers = {source, destination},
                         .messages = {}});
}

ncclResult_t message(const char* name, const PeerMessage& wanted, ncclComm_t comm,
                     cudaStream_t stream) {
  if (const ncclResult_t failure = planned(name); failure != ncclSuccess) return failure;
  OpenGroup& group = open_group();
  if (comm == nullptr || stream == nullptr) return ncclInvalidArgument;
  // NCCL would do it at once; both sides of a pair would then wait for each other.
  if (group.depth == 0) return ncclInvalidUsage;
  if (group.comm != nullptr && (group.comm != comm || group.stream != stream)) {
    return ncclInvalidUsage;
  }
  PeerMessage real = wanted;
  real.bytes = static_cast<std::byte*>(cairn_fake_device_bytes(wanted.bytes, wanted.size_bytes));
  if (real.bytes == nullptr) return ncclInvalidArgument;
  group.comm = comm;
  group.stream = stream;
  group.messages.push_back(real);
  return ncclSuccess;
}

ncclResult_t end(ncclComm_t comm, bool lost) {
  if (lost) {
    comm->world->lose(comm->rank);
  } else {
    comm->world->leave(comm->rank);
  }
  delete comm;
  Library& all = library();
  const std::lock_guard lock(all.mutex);
  --all.alive;
  return ncclSuccess;
}

}  // namespace

extern "C" {

const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclSuccess:
      return "no error";
    case ncclRemoteError:
      return "remote process exited or there was a network error";
    case ncclInvalidUsage:
      return "invalid usage";
    case ncclInvalidArgument:
      return "invalid argument";
    case ncclInProgress:
      return "NCCL operation in progress";
    default:
      return "unhandled error";
  }
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  if (const ncclResult_t failure = planned("ncclGetUniqueId"); failure != ncclSuccess) {
    return failure;
  }
  Library& all = library();
  const std::lock_guard lock(all.mutex);
  std::memset(id, 0, sizeof *id);
  const std::uint64_t number = ++all.ids;
  std::memcpy(id->internal, &number, sizeof number);
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int world_size, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  if (const ncclResult_t failure = planned("ncclCommInitRankConfig"); failure != ncclSuccess) {
    return failure;
  }
  if (config == nullptr || config->blocking != 0) return ncclInvalidUsage;
  Library& all = library();
  std::unique_lock lock(all.mutex);
  auto& world = all.worlds[std::string(id.internal, sizeof id.internal)];
  if (!world) world = std::make_shared<World>(world_size, all.ids);
  const auto mine = world;
  ++all.alive;
  lock.unlock();
  if (!mine->enter(rank, world_size)) {
    lock.lock();
    --all.alive;
    return ncclInvalidArgument;
  }
  *comm = new ncclComm{.world = mine, .rank = rank};
  return ncclInProgress;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
  if (const ncclResult_t failure = planned("ncclCommGetAsyncError"); failure != ncclSuccess) {
    return failure;
  }
  // "async" plans an error of the communicator's own, which stays.
  if (const ncclResult_t failure = planned("async"); failure != ncclSuccess) {
    comm->world->fail(comm->rank, failure);
  }
  *error = comm->world->state(comm->rank);
  return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  if (const ncclResult_t failure = planned("ncclCommFinalize"); failure != ncclSuccess) {
    return failure;
  }
  comm->finalized = true;
  comm->world->leave(comm->rank);
  return ncclSuccess;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) { return end(comm, !comm->finalized); }
ncclResult_t ncclCommAbort(ncclComm_t comm) { return end(comm, true); }

ncclResult_t ncclAllReduce(const void* source, void* destination, std::size_t count,
                           ncclDataType_t type, ncclRedOp_t reduction, ncclComm_t comm,
                           cudaStream_t stream) {
  if (!known(type)) return ncclInvalidArgument;
  const std::size_t size = bytes_of(count, type);
  return collective("ncclAllReduce", {source, size, destination, size},
                    {.kind = CollectiveCall::Kind::all_reduce,
                     .count = count,
                     .type = type,
                     .detail = static_cast<int>(reduction)},
                    comm, stream);
}

ncclResult_t ncclAllGather(const void* source, void* destination, std::size_t count,
                           ncclDataType_t type, ncclComm_t comm, cudaStream_t stream) {
  if (!known(type) || comm == nullptr) return ncclInvalidArgument;
  const std::size_t size = bytes_of(count, type);
  const std::size_t gathered = size * static_cast<std::size_t>(comm->world->size());
  return collective("ncclAllGather", {source, size, destination, gathered},
                    {.kind = CollectiveCall::Kind::all_gather, .count = count, .type = type}, comm,
                    stream);
}

ncclResult_t ncclBroadcast(const void* source, void* destination, std::size_t count,
                           ncclDataType_t type, int root, ncclComm_t comm, cudaStream_t stream) {
  if (!known(type)) return ncclInvalidArgument;
  const std::size_t size = bytes_of(count, type);
  return collective(
      "ncclBroadcast", {source, size, destination, size},
      {.kind = CollectiveCall::Kind::broadcast, .count = count, .type = type, .detail = root}, comm,
      stream);
}

ncclResult_t ncclSend(const void* source, std::size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, cudaStream_t stream) {
  auto* const bytes = const_cast<std::byte*>(static_cast<const std::byte*>(source));
  return message("ncclSend",
                 {.out = true, .peer = peer, .bytes = bytes, .size_bytes = bytes_of(count, type)},
                 comm, stream);
}

ncclResult_t ncclRecv(void* destination, std::size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, cudaStream_t stream) {
  return message("ncclRecv",
                 {.out = false,
                  .peer = peer,
                  .bytes = static_cast<std::byte*>(destination),
                  .size_bytes = bytes_of(count, type)},
                 comm, stream);
}

ncclResult_t ncclGroupStart() {
  if (const ncclResult_t failure = planned("ncclGroupStart"); failure != ncclSuccess) {
    return failure;
  }
  ++open_group().depth;
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
  OpenGroup& open = open_group();
  if (open.depth == 0) return ncclInvalidUsage;
  const ncclResult_t failure = planned("ncclGroupEnd");
  if (--open.depth > 0) return failure;
  const OpenGroup group = std::exchange(open, {});
  if (failure != ncclSuccess || group.messages.empty()) return failure;
  return launch(group.stream, {.world = group.comm->world,
                               .rank = group.comm->rank,
                               .collective = false,
                               .call = {},
                               .buffers = {},
                               .messages = group.messages});
}

// How a test steers the fake.
void cairn_fake_nccl_fail(const char* call, std::uint64_t n, int result) {
  Library& all = library();
  const std::lock_guard lock(all.mutex);
  all.failing = call;
  all.fails_in = n;
  all.failure = static_cast<ncclResult_t>(result);
}
std::uint64_t cairn_fake_nccl_calls(const char* call) {
  Library& all = library();
  const std::lock_guard lock(all.mutex);
  return all.calls[call];
}
std::uint64_t cairn_fake_nccl_alive() {
  Library& all = library();
  const std::lock_guard lock(all.mutex);
  return all.alive;
}

}  // extern "C"
