#include <cuda_runtime_api.h>

#include <cstring>
#include <string>

#include "base/hex.hpp"
#include "transport/collective/nccl_communicator.hpp"

namespace cairn {
namespace {

constexpr std::string_view kNcclPrefix = "nccl:";

class NcclInvitation final : public Invitation {
 public:
  explicit NcclInvitation(const ncclUniqueId& id) : text_(kNcclPrefix) {
    append_hex(text_, std::as_bytes(std::span(id.internal)));
  }
  const std::string& unique_id() const override { return text_; }

 private:
  std::string text_;
};

class NcclCollectives final : public Collectives {
 public:
  NcclCollectives(const NcclLibrary& library, DeviceRuntime& runtime, DeviceMemory& memory)
      : nccl_(library), ground_{library, runtime, memory, left_behind_, {}} {
    for (const DeviceInfo& device : runtime.devices()) {
      ground_.reductions[device.id] = std::make_shared<ReductionCounts>();
    }
  }
  std::string_view name() const override { return "nccl"; }
  std::vector<NamedAllocator> allocators() const override {
    std::vector<NamedAllocator> all;
    for (const auto& [device, counts] : ground_.reductions) {
      all.push_back({.allocator = std::string(kReductionAllocator),
                     .device = std::to_string(device),
                     .now = counts->now(),
                     .from_others = true});
    }
    return all;
  }

  Result<std::unique_ptr<Invitation>> invite(std::chrono::milliseconds /*timeout*/,
                                             const JoinStop& /*stop*/) override {
    ncclUniqueId id;
    const ncclResult_t made = nccl_.get_unique_id(&id);
    if (made != ncclSuccess) return nccl_.error("ncclGetUniqueId", made);
    return std::unique_ptr<Invitation>(std::make_unique<NcclInvitation>(id));
  }

  Result<std::unique_ptr<Communicator>> join(JoinRequest request, const JoinStop& stop,
                                             UniqueFunction<void()> accepted) override {
    const RankPlace place = request.place;
    if (place.world_size < 1 || place.world_size > kMaxWorldSize ||
        place.rank >= place.world_size) {
      return Error{ErrorCode::out_of_range,
                   "rank " + std::to_string(place.rank) + " of " +
                       std::to_string(place.world_size) + ": world_size is 1 to " +
                       std::to_string(kMaxWorldSize) + ", and rank is below it"};
    }
    const std::string& text =
        request.invitation ? request.invitation->unique_id() : request.unique_id;
    ncclUniqueId id;
    if (!text.starts_with(kNcclPrefix) ||
        !from_hex(std::string_view(text).substr(kNcclPrefix.size()),
                  std::as_writable_bytes(std::span(id.internal)))) {
      return Error{ErrorCode::malformed, "unique_id is not NCCL's"};
    }
    auto communicator = NcclCommunicator::open(ground_, request);
    if (!communicator) return std::move(communicator).error();
    // NCCL has no step in between: join() returns only when all ranks have joined.
    accepted();
    CAIRN_TRY((*communicator)->join(id, request.join_timeout, stop));
    return std::unique_ptr<Communicator>(std::move(*communicator));
  }

 private:
  const NcclLibrary& nccl_;
  LeftBehind left_behind_;
  NcclGround ground_;  // constant after construction
};

}  // namespace

Result<std::unique_ptr<Collectives>> make_nccl_collectives(DeviceRuntime& runtime,
                                                           DeviceMemory& memory) {
  int devices = 0;
  if (const cudaError_t asked = cudaGetDeviceCount(&devices);
      asked != cudaSuccess || devices == 0) {
    static_cast<void>(cudaGetLastError());
    return Error{ErrorCode::unavailable,
                 std::string("no CUDA device answers: ") + cudaGetErrorString(asked)};
  }
  auto library = NcclLibrary::load();
  if (!library) return std::move(library).error();
  return std::unique_ptr<Collectives>(
      std::make_unique<NcclCollectives>(**library, runtime, memory));
}

}  // namespace cairn
