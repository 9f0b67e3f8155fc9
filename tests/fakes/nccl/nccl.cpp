// NCCL on the fake CUDA runtime; see Rank for its delays and errors. It refuses: the NULL stream,
// memory and streams of other devices, a GPU for two ranks of this process, blocking communicators,
// and collectives in one group with sends and receives. Any call fails on demand: by the functions
// below, or by CAIRN_FAKE_NCCL_FAIL=CALL:N:RESULT.
#include <cuda_runtime_api.h>
#include <nccl.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/fakes/nccl/rank.hpp"

extern "C" void* cairn_fake_device_bytes(const void* address, std::size_t size_bytes, int device);
extern "C" int cairn_fake_current_device();
extern "C" int cairn_fake_stream_device(cudaStream_t stream);

struct ncclComm {
  std::shared_ptr<cairn::fakes::Rank> rank;
  int device = 0;
  std::string id;
};

namespace {

using cairn::fakes::Rank;
using cairn::fakes::RankCall;

struct Library {
  Library() {
    const char* const plan = std::getenv("CAIRN_FAKE_NCCL_FAIL");
    if (plan == nullptr) return;
    const std::string text(plan);
    const std::size_t n = text.find(':');
    const std::size_t result = text.find(':', n + 1);
    failing = text.substr(0, n);
    fails_in = std::strtoull(text.c_str() + n + 1, nullptr, 10);
    failure = static_cast<ncclResult_t>(std::atoi(text.c_str() + result + 1));
  }

  std::mutex mutex;
  const std::unique_ptr<cairn::Collectives> sockets = cairn::make_local_collectives("127.0.0.1");
  std::map<std::string, std::unique_ptr<cairn::Invitation>> invitations;  // by unique id
  std::set<std::pair<std::string, int>> devices;  // of this process's ranks, by unique id
  std::size_t alive = 0;
  std::string failing;
  std::uint64_t fails_in = 0;
  ncclResult_t failure = ncclSuccess;
  std::map<std::string, std::uint64_t> calls;
};
// Never destroyed: leaked streams are threads that keep using it.
Library& library() {
  static Library& one = *new Library;
  return one;
}

ncclResult_t planned(const char* call) {
  Library& all = library();
  const std::lock_guard lock(all.mutex);
  ++all.calls[call];
  if (all.fails_in == 0 || all.failing != call || --all.fails_in > 0) return ncclSuccess;
  return all.failure;
}

// A stream's work for a rank. Owned by the stream.
struct Work {
  std::shared_ptr<Rank> rank;
  std::vector<RankCall> calls;
};

void run(void* argument) {
  const std::unique_ptr<Work> work(static_cast<Work*>(argument));
  work->rank->run(work->calls);
}

ncclResult_t launch(cudaStream_t stream, Work work) {
  auto owned = std::make_unique<Work>(std::move(work));
  if (cudaLaunchHostFunc(stream, run, owned.get()) != cudaSuccess) return ncclUnhandledCudaError;
  static_cast<void>(owned.release());
  return ncclSuccess;
}

// The calling thread's group of calls.
struct OpenGroup {
  int depth = 0;
  ncclComm_t comm = nullptr;
  cudaStream_t stream = nullptr;
  std::vector<RankCall> calls;
};
OpenGroup& open_group() {
  thread_local OpenGroup group;
  return group;
}

bool known(ncclDataType_t type) { return type >= ncclInt8 && type <= ncclBfloat16; }

bool is_message(const RankCall& call) {
  return call.kind == RankCall::Kind::send || call.kind == RankCall::Kind::receive;
}

// The bytes' real place; null if NCCL would refuse them.
std::byte* real(const void* address, std::size_t size_bytes, ncclComm_t comm) {
  return static_cast<std::byte*>(cairn_fake_device_bytes(address, size_bytes, comm->device));
}

// `wanted` has device addresses.
ncclResult_t issue(const char* name, RankCall wanted, ncclComm_t comm, cudaStream_t stream) {
  if (const ncclResult_t failure = planned(name); failure != ncclSuccess) return failure;
  if (comm == nullptr || stream == nullptr || wanted.detail < 0) return ncclInvalidArgument;
  if (cairn_fake_stream_device(stream) != comm->device) return ncclInvalidArgument;
  const ncclResult_t state = comm->rank->state();
  if (state != ncclSuccess) return state == ncclInProgress ? ncclInvalidUsage : state;
  const std::size_t size = wanted.elements.size_bytes();
  const bool gathers = wanted.kind == RankCall::Kind::all_gather;
  const bool reduces = wanted.kind == RankCall::Kind::all_reduce;
  const auto world_size = static_cast<std::size_t>(comm->rank->world_size());
  if (!gathers && !reduces && wanted.detail >= comm->rank->world_size()) {
    return ncclInvalidArgument;
  }
  if (reduces && wanted.detail > ncclAvg) return ncclInvalidArgument;
  if (wanted.kind != RankCall::Kind::receive) {
    wanted.source = real(wanted.source, size, comm);
    if (wanted.source == nullptr) return ncclInvalidArgument;
  }
  if (wanted.kind != RankCall::Kind::send) {
    wanted.destination = real(wanted.destination, gathers ? size * world_size : size, comm);
    if (wanted.destination == nullptr) return ncclInvalidArgument;
  }
  OpenGroup& group = open_group();
  if (group.depth == 0) {
    // NCCL would run it at once. Both sides of a pair would then wait for each other.
    if (is_message(wanted)) return ncclInvalidUsage;
    return launch(stream, {.rank = comm->rank, .calls = {wanted}});
  }
  if (group.comm != nullptr && (group.comm != comm || group.stream != stream ||
                                is_message(group.calls.front()) != is_message(wanted))) {
    return ncclInvalidUsage;
  }
  group.comm = comm;
  group.stream = stream;
  group.calls.push_back(wanted);
  return ncclSuccess;
}

ncclResult_t end(ncclComm_t comm) {
  comm->rank->abort();
  Library& all = library();
  {
    const std::lock_guard lock(all.mutex);
    --all.alive;
    all.devices.erase({comm->id, comm->device});
  }
  delete comm;
  return ncclSuccess;
}

cairn::Communicator::Elements elements(std::size_t count, ncclDataType_t type) {
  return {.count = count, .type = static_cast<cairn::DataType>(type)};
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
  const cairn::JoinStop never;
  auto invited = all.sockets->invite(std::chrono::minutes(1), never);
  if (!invited) return ncclSystemError;
  const std::string text = (*invited)->unique_id();
  if (text.size() >= sizeof id->internal) return ncclInternalError;
  std::memset(id, 0, sizeof *id);
  std::memcpy(id->internal, text.data(), text.size());
  const std::lock_guard lock(all.mutex);
  all.invitations[text] = std::move(*invited);
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int world_size, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  if (const ncclResult_t failure = planned("ncclCommInitRankConfig"); failure != ncclSuccess) {
    return failure;
  }
  if (config == nullptr || config->blocking != 0) return ncclInvalidUsage;
  if (rank < 0 || rank >= world_size) return ncclInvalidArgument;
  const std::string text(id.internal, ::strnlen(id.internal, sizeof id.internal));
  const int device = cairn_fake_current_device();
  cairn::JoinRequest request{.place = {.rank = static_cast<std::uint32_t>(rank),
                                       .world_size = static_cast<std::uint32_t>(world_size)},
                             .unique_id = text};
  Library& all = library();
  const std::lock_guard lock(all.mutex);
  if (!all.devices.emplace(text, device).second) return ncclInvalidUsage;
  if (rank == 0) request.invitation = std::move(all.invitations[text]);
  ++all.alive;
  *comm = new ncclComm{.rank = std::make_shared<Rank>(*all.sockets, std::move(request)),
                       .device = device,
                       .id = text};
  return ncclInProgress;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
  if (const ncclResult_t failure = planned("ncclCommGetAsyncError"); failure != ncclSuccess) {
    return failure;
  }
  // "async" plans an asynchronous error of the communicator, which is sticky.
  if (const ncclResult_t failure = planned("async"); failure != ncclSuccess) {
    comm->rank->fail(failure);
  }
  *error = comm->rank->state();
  return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  if (const ncclResult_t failure = planned("ncclCommFinalize"); failure != ncclSuccess) {
    return failure;
  }
  comm->rank->finalize();
  return comm->rank->state();
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) { return end(comm); }
ncclResult_t ncclCommAbort(ncclComm_t comm) { return end(comm); }

ncclResult_t ncclAllReduce(const void* source, void* destination, std::size_t count,
                           ncclDataType_t type, ncclRedOp_t reduction, ncclComm_t comm,
                           cudaStream_t stream) {
  if (!known(type)) return ncclInvalidArgument;
  return issue("ncclAllReduce",
               {.kind = RankCall::Kind::all_reduce,
                .source = static_cast<const std::byte*>(source),
                .destination = static_cast<std::byte*>(destination),
                .elements = elements(count, type),
                .detail = static_cast<int>(reduction)},
               comm, stream);
}

ncclResult_t ncclAllGather(const void* source, void* destination, std::size_t count,
                           ncclDataType_t type, ncclComm_t comm, cudaStream_t stream) {
  if (!known(type)) return ncclInvalidArgument;
  return issue("ncclAllGather",
               {.kind = RankCall::Kind::all_gather,
                .source = static_cast<const std::byte*>(source),
                .destination = static_cast<std::byte*>(destination),
                .elements = elements(count, type)},
               comm, stream);
}

ncclResult_t ncclBroadcast(const void* source, void* destination, std::size_t count,
                           ncclDataType_t type, int root, ncclComm_t comm, cudaStream_t stream) {
  if (!known(type)) return ncclInvalidArgument;
  return issue("ncclBroadcast",
               {.kind = RankCall::Kind::broadcast,
                .source = static_cast<const std::byte*>(source),
                .destination = static_cast<std::byte*>(destination),
                .elements = elements(count, type),
                .detail = root},
               comm, stream);
}

ncclResult_t ncclSend(const void* source, std::size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, cudaStream_t stream) {
  if (!known(type)) return ncclInvalidArgument;
  return issue("ncclSend",
               {.kind = RankCall::Kind::send,
                .source = static_cast<const std::byte*>(source),
                .elements = elements(count, type),
                .detail = peer},
               comm, stream);
}

ncclResult_t ncclRecv(void* destination, std::size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, cudaStream_t stream) {
  if (!known(type)) return ncclInvalidArgument;
  return issue("ncclRecv",
               {.kind = RankCall::Kind::receive,
                .destination = static_cast<std::byte*>(destination),
                .elements = elements(count, type),
                .detail = peer},
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
  if (failure != ncclSuccess || group.calls.empty()) return failure;
  return launch(group.stream, {.rank = group.comm->rank, .calls = group.calls});
}

// The functions by which a test controls the fake.
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
