#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/cache_line.hpp"
#include "memory/cuda/cuda_context.hpp"
#include "memory/device_runtime.hpp"

namespace cairn {

// A point in a CUDA stream.
class alignas(kCacheLineBytes) CudaEvent final : public Event {
 public:
  // Where an event is recorded. Its device, and those it depends on, belong to the context.
  struct Origin {
    CudaDevice& device;
    cudaStream_t stream = nullptr;
    // Other devices whose work or memory the work before the event has used. CUDA reports their
    // failure only to callers that ask about them: this device would continue with whatever bytes
    // are there.
    std::vector<CudaDevice*> relies_on;
  };
  static Result<std::unique_ptr<CudaEvent>> record(std::shared_ptr<CudaContext> context,
                                                   Origin origin);
  ~CudaEvent() override;
  CudaEvent(const CudaEvent&) = delete;
  CudaEvent& operator=(const CudaEvent&) = delete;

  Result<bool> ready() override;
  Result<> wait() override;
  void when_reached(UniqueFunction<void()> then) override;
  cudaEvent_t handle() const { return event_; }
  CudaDevice& device() const { return origin_.device; }
  std::span<CudaDevice* const> relies_on() const { return origin_.relies_on; }
  bool known_reached() const { return reached_.load(std::memory_order_acquire); }

 private:
  CudaEvent(std::shared_ptr<CudaContext> context, Origin origin, cudaEvent_t event)
      : context_(std::move(context)), origin_(std::move(origin)), event_(event) {}
  // The meaning of a query's outcome; remembers that the event was reached.
  Result<bool> judge(cudaError_t outcome);

  const std::shared_ptr<CudaContext> context_;
  const Origin origin_;
  const cudaEvent_t event_;
  // Once reached it stays reached, whatever happens to the device.
  std::atomic<bool> reached_{false};
  // The poller's outcome: CUDA reports an error once, and it belongs to this event.
  std::atomic<cudaError_t> outcome_{cudaErrorNotReady};
};
static_assert(alignof(CudaEvent) == kCacheLineBytes);

}  // namespace cairn
