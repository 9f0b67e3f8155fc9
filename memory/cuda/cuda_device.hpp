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
  std::uint64_t size_bytes = 0;  // 0: the call is not about bytes
};

std::string cuda_message(cudaError_t outcome, CudaCall call);

// One GPU: what is known of it, and whether it still works. CUDA reports some errors for ever once
// they happened (an illegal address, an uncorrectable memory error, a device that fell off the
// bus); from the first of them on the device is lost, and every operation fails at once with that
// first reason. So is one that hangs: it has not ended some work for longer than `patience`. That
// one may go on at any time and write to memory, so nothing that it might write to is given back,
// and who waits for its work waits until it has ended or the device is broken. Thread-safe.
class alignas(kCacheLineBytes) CudaDevice {
 public:
  // Makes the device's context. `unavailable`, with the reason, where it does not answer.
  using Patience = std::chrono::milliseconds;
  static Result<std::unique_ptr<CudaDevice>> open(int id, Patience patience);
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
  // Waits until nothing runs on `stream` any more, however long that takes: what it writes to is
  // used for something else afterwards. Where nobody can tell the device is lost: what it may still
  // write can be trusted no more.
  void drain(cudaStream_t stream);
  // Fills memory of the caller's own with zeros, and returns when they are there. Where it fails
  // because the device hangs it may still write there: see hangs().
  Result<> zero_now(void* destination, std::uint64_t size_bytes);

  // An event without a time stamp, which costs the device least. It is kept for the next user where
  // it was reached, and ended otherwise. REQUIRES of take_event(): enter().
  Result<cudaEvent_t> take_event();
  void give_event(cudaEvent_t event, bool was_reached);

  // Asks CUDA whether the device has been broken by work that nobody has waited for yet.
  Result<> probe();
  // What is known without asking: whether it takes new work, and whether what it has may still go
  // on.
  Result<> alive() const;
  Result<> unbroken() const;
  std::optional<std::string> lost() const;  // why, as a sentence
  // The first reason stays.
  void mark_lost(const std::string& why) { mark(Health::broken, why); }
  void mark_hanging(const std::string& why) { mark(Health::hangs, why); }
  // Nothing of its memory may be given back: it might write there under whoever has it next, and
  // CUDA's calls that give back wait for the device. It is the process's until that ends.
  bool hangs() const { return health_.load(std::memory_order_acquire) == Health::hangs; }
  // Of work that began then and has not ended: marks the device as hanging after its patience.
  using Moment = std::chrono::steady_clock::time_point;
  void note_waiting(Moment since, Moment now);

 private:
  enum class Health : std::uint8_t { works, hangs, broken };
  CudaDevice(int id, Patience patience);
  void mark(Health health, const std::string& why);
  Result<> describe();
  Result<int> attribute(cudaDeviceAttr which, const char* purpose);
  void end_event(cudaEvent_t event);
  Result<bool> has_ended(cudaStream_t stream, const char* purpose);

  const Patience patience_;
  DeviceInfo info_;
  bool concurrent_managed_access_ = false;
  CudaMemoryFacts memory_facts_;
  std::uint32_t multiprocessors_ = 1;
  Mutex filling_;  // one user of filler_ at a time
  cudaStream_t filler_ = nullptr;

  std::atomic<Health> health_{Health::works};  // only ever gets worse
  mutable Mutex mutex_;
  std::vector<cudaEvent_t> events_ CAIRN_GUARDED_BY(mutex_);  // that nobody uses
  std::string why_lost_ CAIRN_GUARDED_BY(mutex_);             // written once, before health_
};
static_assert(alignof(CudaDevice) == kCacheLineBytes);

}  // namespace cairn
