#pragma once

#include <cuda_runtime_api.h>

#include <chrono>
#include <list>

#include "base/cache_line.hpp"
#include "base/mutex.hpp"
#include "base/thread.hpp"
#include "base/unique_function.hpp"
#include "memory/cuda/cuda_device.hpp"

namespace cairn {

// Reports CUDA events to waiting callers: one thread polls all of them every few microseconds, and
// sleeps while nobody waits. CUDA's own ways either spin on a core or, as a callback on the stream,
// never come after an error. Thread-safe.
class alignas(kCacheLineBytes) CudaPoller {
 public:
  // Throws std::system_error if the machine cannot create a thread.
  CudaPoller();
  // REQUIRES: nobody waits.
  ~CudaPoller();

  // An event of a device; the device outlives the wait.
  struct Awaited {
    cudaEvent_t event = nullptr;
    CudaDevice& device;
  };
  // Called once, on the poller's thread, with cudaSuccess or the error of the event's query. A
  // device that takes too long is marked as hanging, and the poller still waits for its event,
  // because the caller reuses the memory after the call.
  using Reached = UniqueFunction<void(cudaError_t)>;
  void when_reached(Awaited awaited, Reached reached);
  // Blocks until then.
  cudaError_t wait(Awaited awaited);

 private:
  struct Waiter {
    Awaited awaited;
    Reached reached;
    CudaDevice::Moment since = std::chrono::steady_clock::now();
    cudaError_t outcome = cudaErrorNotReady;
  };
  void run();

  Mutex mutex_;
  Condition work_;
  std::list<Waiter> waiters_ CAIRN_GUARDED_BY(mutex_);  // not polled yet
  bool joined_ CAIRN_GUARDED_BY(mutex_) = false;        // a wait began since the last round
  bool closing_ CAIRN_GUARDED_BY(mutex_) = false;
  Thread thread_;
};
static_assert(alignof(CudaPoller) == kCacheLineBytes);

}  // namespace cairn
