#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>

#include "base/mutex.hpp"
#include "transport/collective/communicator.hpp"
#include "transport/collective/nccl_workplace.hpp"

namespace cairn {

// A rank on a GPU. NCCL runs non-blocking: every wait polls NCCL and the stream, so that a lost
// rank, a timeout or an abort ends it. A device that does not finish within the timeout is declared
// lost, and its memory goes to LeftBehind.
class NcclCommunicator final : public Communicator {
 public:
  // Creates everything but NCCL's communicator, which join() creates. Borrows `ground`.
  static Result<std::unique_ptr<NcclCommunicator>> open(const NcclGround& ground,
                                                        const JoinRequest& request);
  ~NcclCommunicator() override;

  // Blocks until every rank has joined.
  Result<> join(const ncclUniqueId& id, std::chrono::milliseconds timeout, const JoinStop& stop);

  std::string_view name() const override { return "nccl"; }
  RankPlace place() const override { return place_; }
  bool takes_device_memory() const override { return true; }
  Result<> all_reduce(const AllReduce& call) override;
  Result<> all_gather(const AllGather& call) override;
  Result<> broadcast(const Broadcast& call) override;
  Result<> exchange(std::span<const Message> messages) override;
  Result<> finalize() override;
  void abort(const Error& why) override;

 private:
  NcclCommunicator(const NcclGround& ground, const JoinRequest& request,
                   std::unique_ptr<NcclWorkplace> workplace)
      : ground_(ground),
        nccl_(ground.nccl),
        place_(request.place),
        device_id_(request.device_id),
        step_timeout_(request.step_timeout),
        workplace_(std::move(workplace)) {}

  using Until = std::chrono::steady_clock::time_point;
  // One call: `lay_out` adds the parts to the workplace, `issue` calls NCCL.
  struct Step {
    std::string what;
    std::function<Result<>(NcclWorkplace&)> lay_out;
    std::function<ncclResult_t(NcclWorkplace&)> issue;
  };
  Result<> run(const Step& step);
  Result<> take(const Step& step);
  // Calls `issue` for every part, as one NCCL group.
  ncclResult_t grouped(const std::function<ncclResult_t(std::size_t part)>& issue);
  // Wait until NCCL has accepted the call, and until the stream has completed it.
  Result<> wait_for_nccl(const std::string& what, ncclResult_t issued, Until until,
                         const JoinStop* stop);
  Result<> wait_for_stream(const std::string& what, Until until);
  Result<> check_going(Until until, const std::string& what) const;
  Result<> check_rank(std::uint32_t rank, std::string_view what) const;
  Error break_down(const Error& why);
  // Aborts NCCL's communicator and waits for the device. Returns false on timeout: the device is
  // then declared lost, and the workplace has moved to LeftBehind.
  bool stop_device();

  const NcclGround& ground_;
  const NcclLibrary& nccl_;
  const RankPlace place_;
  const int device_id_;
  const std::chrono::milliseconds step_timeout_;
  std::unique_ptr<NcclWorkplace> workplace_;
  ncclComm_t comm_ = nullptr;
  std::optional<Error> broken_;
  std::atomic<bool> aborted_{false};
  mutable Mutex mutex_;
  std::optional<Error> abort_reason_ CAIRN_GUARDED_BY(mutex_);
};

}  // namespace cairn
