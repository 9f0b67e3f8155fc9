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

// Tells who waits for CUDA events: one thread asks for all of them every few microseconds, and
// sleeps while nobody waits. CUDA's own ways either spin on a core or, as a callback on the stream,
// never come after an error. Thread-safe.
class alignas(kCacheLineBytes) CudaPoller {
 public:
  // Throws std::system_error where the machine gives no thread.
  CudaPoller();
  // REQUIRES: nobody waits.
  ~CudaPoller();

  // An event of a device, which outlives the wait.
  struct Awaited {
    cudaEvent_t event = nullptr;
    CudaDevice& device;
  };
  // Called once, on the poller's thread: cudaSuccess, or the error of the event's query. A device
  // that takes too long is marked as hanging, and its event is waited for all the same: whoever is
  // told uses the memory for something else.
  using Told = UniqueFunction<void(cudaError_t)>;
  void when_reached(Awaited awaited, Told told);
  // Blocks until then.
  cudaError_t wait(Awaited awaited);

 private:
  struct Waiter {
    Awaited awaited;
    Told told;
    CudaDevice::Moment since = std::chrono::steady_clock::now();
    cudaError_t outcome = cudaErrorNotReady;
  };
  void run();

  Mutex mutex_;
  Condition work_;
  std::list<Waiter> waiters_ CAIRN_GUARDED_BY(mutex_);  // whom no round has asked for yet
  bool joined_ CAIRN_GUARDED_BY(mutex_) = false;  // somebody began to wait since the last round
  bool closing_ CAIRN_GUARDED_BY(mutex_) = false;
  Thread thread_;
};
static_assert(alignof(CudaPoller) == kCacheLineBytes);

}  // namespace cairn
