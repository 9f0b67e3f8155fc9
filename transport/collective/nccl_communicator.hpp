#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "base/mutex.hpp"
#include "transport/collective/communicator.hpp"
#include "transport/collective/nccl_library.hpp"

namespace cairn {

// A rank on a GPU. Bytes go through one device buffer that grows to the largest call and is kept:
// up, the call on one stream, and down again once NCCL says that it is done. The communicator does
// not block: every wait asks NCCL and the stream in turn, so that a lost rank, a deadline and an
// abort end it.
class NcclCommunicator final : public Communicator {
 public:
  // All but the communicator itself; join() makes that.
  static Result<std::unique_ptr<NcclCommunicator>> open(const NcclLibrary& library,
                                                        const JoinRequest& request);
  ~NcclCommunicator() override;

  // Blocks until every rank is there.
  Result<> join(const ncclUniqueId& id, std::chrono::milliseconds timeout, const JoinStop& stop);

  std::string_view name() const override { return "nccl"; }
  RankPlace place() const override { return place_; }
  Result<> all_reduce(const AllReduce& call) override;
  Result<> all_gather(const AllGather& call) override;
  Result<> broadcast(const Broadcast& call) override;
  Result<> exchange(std::span<const Message> messages) override;
  Result<> finalize() override;
  void abort(const Error& why) override;

 private:
  NcclCommunicator(const NcclLibrary& library, const JoinRequest& request)
      : nccl_(library),
        place_(request.place),
        device_id_(request.device_id),
        step_timeout_(request.step_timeout) {}

  // Bytes on the host and where they are on the device.
  struct Transit {
    std::span<const iovec> pieces;
    std::uint64_t offset_bytes = 0;
    bool up = false;
    bool down = false;
  };
  using Until = std::chrono::steady_clock::time_point;
  // Copies up, runs `issue` and waits for it, copies down.
  Result<> run(const std::string& what, std::span<const Transit> transits,
               const std::function<ncclResult_t()>& issue);
  Result<> steps(const std::string& what, std::span<const Transit> transits,
                 const std::function<ncclResult_t()>& issue);
  Result<> reserve(std::uint64_t size_bytes);
  Result<> copy(const Transit& transit, bool up);
  // Until NCCL has taken the call, and until the stream has done it.
  Result<> wait_for_nccl(const std::string& what, ncclResult_t issued, Until until,
                         const JoinStop* stop);
  Result<> wait_for_stream(const std::string& what, Until until);
  Result<> check_going(Until until, const std::string& what) const;
  Result<> check_rank(std::uint32_t rank, std::string_view what) const;
  Error break_down(const Error& why);
  // Whether the stream has nothing left to do by then.
  bool ends_in_time() const;

  const NcclLibrary& nccl_;
  const RankPlace place_;
  const int device_id_;
  const std::chrono::milliseconds step_timeout_;
  ncclComm_t comm_ = nullptr;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t event_ = nullptr;
  std::byte* buffer_ = nullptr;
  std::uint64_t buffer_bytes_ = 0;
  bool copies_down_ = false;  // to memory of a call's
  std::optional<Error> broken_;
  std::atomic<bool> aborted_{false};
  mutable Mutex mutex_;
  std::optional<Error> abort_reason_ CAIRN_GUARDED_BY(mutex_);
};

}  // namespace cairn
