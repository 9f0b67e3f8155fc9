#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/cache_line.hpp"
#include "base/mutex.hpp"
#include "memory/cuda/cuda_platform.hpp"
#include "memory/device_runtime.hpp"

namespace cairn {

// A call of the CUDA runtime, for its error: "NAME to PURPOSE (SIZE bytes): CUDA's own words".
struct CudaCall {
  const char* name;
  const char* purpose;
  std::uint64_t size_bytes = 0;  // 0: the call has no size
};

std::string cuda_message(cudaError_t outcome, CudaCall call);

// One GPU: its properties, and whether it still works. After some errors (an illegal address, an
// uncorrectable memory error, a device that fell off the bus) CUDA reports only errors. From the
// first of them on the device is lost, and every operation fails at once with that first reason. A
// device is also lost if it hangs: it has not ended some work within `hang_timeout`. A hanging
// device may continue at any time and write to memory. So no memory that it might write to is
// freed, and callers that wait for its work wait until the work has ended or the device is broken.
// Thread-safe.
class alignas(kCacheLineBytes) CudaDevice {
 public:
  // Creates the device's context. `unavailable`, with the reason, if it does not respond.
  using HangTimeout = std::chrono::milliseconds;
  static Result<std::unique_ptr<CudaDevice>> open(int id, HangTimeout hang_timeout);
  ~CudaDevice();
  CudaDevice(const CudaDevice&) = delete;
  CudaDevice& operator=(const CudaDevice&) = delete;

  const DeviceInfo& info() const { return info_; }
  // The CPU may touch managed memory while the device works, it can be prefetched, and there can be
  // more of it than the device has.
  bool concurrent_managed_access() const { return concurrent_managed_access_; }

  // Kernels access registered host memory at the CPU's address.
  bool maps_pinned_memory() const { return memory_facts_.host_pointer_for_registered; }
  const CudaMemoryFacts& memory_facts() const { return memory_facts_; }
  std::uint32_t multiprocessors() const { return multiprocessors_; }

  // Makes it the calling thread's current device (CUDA has one per thread). device_error if lost.
  Result<> enter();
  // The outcome of a call on this device as a Result. Clears the error of the calling thread;
  // otherwise the next check of a kernel launch would find it again. no_capacity if memory ran out.
  Result<> check(cudaError_t outcome, CudaCall call);
  // The error of a failed call, by CUDA's code; `message` says which call and why.
  Error fail(cudaError_t outcome, const std::string& message);
  // For calls that free something. No caller can react to their failure, which is nearly always the
  // late report of another operation's failure; but a lost device must be recorded.
  void check_release(cudaError_t outcome, CudaCall call);
  // Waits until nothing runs on `stream` any more, however long that takes, because the memory it
  // writes to is reused afterwards. If CUDA cannot tell, the device is lost: the memory it may
  // still write to cannot be trusted.
  void drain(cudaStream_t stream);
  // Fills the caller's own memory with zeros, and returns when they are there. If it fails because
  // the device hangs, the device may still write there: see hangs().
  Result<> zero_now(void* destination, std::uint64_t size_bytes);

  // An event without a time stamp, the cheapest kind for the device. After use it is kept if it was
  // reached, and destroyed otherwise. REQUIRES for take_event(): enter().
  Result<cudaEvent_t> take_event();
  void give_event(cudaEvent_t event, bool was_reached);

  // Asks CUDA whether work that nobody has waited for yet has broken the device.
  Result<> probe();
  // The known state, without asking: whether the device accepts new work, and whether its current
  // work may still continue.
  Result<> alive() const;
  Result<> unbroken() const;
  std::optional<std::string> lost() const;  // why, as a sentence
  // The first reason stays.
  void mark_lost(const std::string& why) { mark(Health::broken, why); }
  void mark_hanging(const std::string& why) { mark(Health::hangs, why); }
  // None of its memory may be freed: it might write there when the memory has its next user, and
  // CUDA's calls that free wait for the device. It belongs to the process until the process ends.
  bool hangs() const { return health_.load(std::memory_order_acquire) == Health::hangs; }
  // For work that began then and has not ended: marks the device as hanging after `hang_timeout`.
  using Moment = std::chrono::steady_clock::time_point;
  void note_waiting(Moment since, Moment now);

 private:
  enum class Health : std::uint8_t { works, hangs, broken };
  CudaDevice(int id, HangTimeout hang_timeout);
  void mark(Health health, const std::string& why);
  Result<> describe();
  Result<int> attribute(cudaDeviceAttr which, const char* purpose);
  void end_event(cudaEvent_t event);
  Result<bool> has_ended(cudaStream_t stream, const char* purpose);

  const HangTimeout hang_timeout_;
  DeviceInfo info_;
  bool concurrent_managed_access_ = false;
  CudaMemoryFacts memory_facts_;
  std::uint32_t multiprocessors_ = 1;
  Mutex filling_;  // one user of filler_ at a time
  cudaStream_t filler_ = nullptr;

  std::atomic<Health> health_{Health::works};  // only ever gets worse
  mutable Mutex mutex_;
  std::vector<cudaEvent_t> events_ CAIRN_GUARDED_BY(mutex_);  // unused
  std::string why_lost_ CAIRN_GUARDED_BY(mutex_);             // written once, before health_
};
static_assert(alignof(CudaDevice) == kCacheLineBytes);

}  // namespace cairn
