#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
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
  std::uint64_t size_bytes = 0;  // 0: the call is not about bytes
};

std::string cuda_message(cudaError_t outcome, CudaCall call);

// One GPU: what is known of it, and whether it still works. CUDA reports some errors for ever once
// they happened (an illegal address, an uncorrectable memory error, a device that fell off the
// bus); from the first of them on the device is lost, and every operation fails at once with that
// first reason. Thread-safe.
class alignas(kCacheLineBytes) CudaDevice {
 public:
  // Makes the device's context. `unavailable`, with the reason, where it does not answer.
  static Result<std::unique_ptr<CudaDevice>> open(int id);
  ~CudaDevice();
  CudaDevice(const CudaDevice&) = delete;
  CudaDevice& operator=(const CudaDevice&) = delete;

  const DeviceInfo& info() const { return info_; }
  // Managed memory may be touched by the CPU while the device works, may be prefetched, and there
  // may be more of it than the device has.
  bool concurrent_managed_access() const { return concurrent_managed_access_; }

  // Kernels reach registered host memory at the address that the CPU has for it.
  bool maps_pinned_memory() const { return memory_facts_.host_pointer_for_registered; }
  const CudaMemoryFacts& memory_facts() const { return memory_facts_; }
  std::uint32_t multiprocessors() const { return multiprocessors_; }

  // Makes it the calling thread's current device (CUDA's is one a thread). device_error if lost.
  Result<> enter();
  // The outcome of a call on this device as a Result; takes the error off the calling thread, where
  // the next check of a kernel launch would find it again. no_capacity where memory ran out.
  Result<> check(cudaError_t outcome, CudaCall call);
  // The error of a call that has failed, by what CUDA answered; `message` says which and why.
  Error fail(cudaError_t outcome, const std::string& message);
  // For calls that give something back: nobody can act on their failure, which is nearly always the
  // late report of another operation's; but a device that is lost must be known to be.
  void check_release(cudaError_t outcome, CudaCall call);
  // Waits until nothing runs on `stream` any more. Where even that fails the device is lost: what
  // it may still write can be trusted no more.
  void drain(cudaStream_t stream);
  // Fills with zeros, and returns when they are there.
  Result<> zero_now(void* destination, std::uint64_t size_bytes);

  // An event without a time stamp, which costs the device least. It is kept for the next user where
  // it was reached, and ended otherwise. REQUIRES of take_event(): enter().
  Result<cudaEvent_t> take_event();
  void give_event(cudaEvent_t event, bool was_reached);

  // Asks CUDA whether the device has been broken by work that nobody has waited for yet.
  Result<> probe();
  // What is known without asking.
  Result<> alive() const;
  std::optional<std::string> lost() const;  // why, as a sentence
  void mark_lost(const std::string& why);   // the first reason stays

 private:
  explicit CudaDevice(int id);
  Result<> describe();
  Result<int> attribute(cudaDeviceAttr which, const char* purpose);
  void end_event(cudaEvent_t event);

  DeviceInfo info_;
  bool concurrent_managed_access_ = false;
  CudaMemoryFacts memory_facts_;
  std::uint32_t multiprocessors_ = 1;
  Mutex filling_;  // one user of filler_ at a time
  cudaStream_t filler_ = nullptr;

  std::atomic<bool> is_lost_{false};
  mutable Mutex mutex_;
  std::vector<cudaEvent_t> events_ CAIRN_GUARDED_BY(mutex_);  // that nobody uses
  std::string why_lost_ CAIRN_GUARDED_BY(mutex_);             // written once, before is_lost_
};
static_assert(alignof(CudaDevice) == kCacheLineBytes);

}  // namespace cairn
