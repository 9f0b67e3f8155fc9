#pragma once

#include <cuda_runtime_api.h>

#include <vector>

#include "base/cache_line.hpp"
#include "base/mutex.hpp"
#include "base/thread.hpp"

namespace cairn {

// Wakes threads that wait for CUDA events: one thread asks for all of them every few microseconds,
// and sleeps while nobody waits. CUDA's own ways either spin on a core or, as a callback on the
// stream, never come after an error. Thread-safe.
class alignas(kCacheLineBytes) CudaPoller {
 public:
  // Throws std::system_error where the machine gives no thread.
  CudaPoller();
  // REQUIRES: nobody waits.
  ~CudaPoller();

  // Blocks until the event is reached or its query fails; cudaSuccess or the query's error.
  cudaError_t wait(cudaEvent_t event);

 private:
  struct Waiter;
  void run();

  Mutex mutex_;
  Condition work_;
  std::vector<Waiter*> waiters_ CAIRN_GUARDED_BY(mutex_);
  bool joined_ CAIRN_GUARDED_BY(mutex_) = false;  // somebody began to wait since the last round
  bool closing_ CAIRN_GUARDED_BY(mutex_) = false;
  Thread thread_;
};
static_assert(alignof(CudaPoller) == kCacheLineBytes);

}  // namespace cairn
