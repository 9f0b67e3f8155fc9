#pragma once

#include <cuda_runtime_api.h>

#include <list>

#include "base/cache_line.hpp"
#include "base/mutex.hpp"
#include "base/thread.hpp"
#include "base/unique_function.hpp"

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

  // Called once, on the poller's thread: cudaSuccess, or the error of the event's query.
  using Told = UniqueFunction<void(cudaError_t)>;
  void when_reached(cudaEvent_t event, Told told);
  // Blocks until then.
  cudaError_t wait(cudaEvent_t event);

 private:
  struct Waiter {
    cudaEvent_t event;
    Told told;
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
