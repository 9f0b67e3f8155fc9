#include "memory/cuda/cuda_event.hpp"

#include <utility>

namespace cairn {

Result<std::unique_ptr<CudaEvent>> CudaEvent::record(std::shared_ptr<CudaContext> context,
                                                     Origin origin) {
  CudaDevice& device = origin.device;
  const cudaStream_t stream = origin.stream;
  CAIRN_TRY(device.enter());
  auto handle = device.take_event();
  if (!handle) return std::move(handle).error();
  std::unique_ptr<CudaEvent> event(new CudaEvent(std::move(context), std::move(origin), *handle));
  CAIRN_TRY(device.check(cudaEventRecord(*handle, stream),
                         {"cudaEventRecord", "mark a point in a stream"}));
  return event;
}

CudaEvent::~CudaEvent() { origin_.device.give_event(event_, known_reached()); }

Result<bool> CudaEvent::judge(cudaError_t outcome) {
  if (outcome == cudaErrorNotReady) {
    static_cast<void>(cudaGetLastError());  // not an error, but CUDA records it as one
    return false;
  }
  CAIRN_TRY(origin_.device.check(outcome, {"cudaEventQuery", "see whether work has ended"}));
  for (CudaDevice* other : origin_.relies_on) CAIRN_TRY(other->probe());
  reached_.store(true, std::memory_order_release);
  return true;
}

Result<bool> CudaEvent::ready() {
  if (known_reached()) return true;
  CAIRN_TRY(origin_.device.unbroken());
  const cudaError_t result = outcome_.load(std::memory_order_acquire);
  if (result != cudaErrorNotReady) return judge(result);
  return judge(cudaEventQuery(event_));
}

Result<> CudaEvent::wait() {
  auto now = ready();
  if (now && !*now) now = judge(context_->poller.wait({event_, origin_.device}));
  if (!now) return std::move(now).error();
  return {};
}

void CudaEvent::when_reached(UniqueFunction<void()> then) {
  if (known_reached() || !origin_.device.unbroken()) return then();
  context_->poller.when_reached({event_, origin_.device},
                                [this, then = std::move(then)](cudaError_t result) mutable {
                                  outcome_.store(result, std::memory_order_release);
                                  then();
                                });
}

}  // namespace cairn
