#include "memory/cuda/cuda_device.hpp"

#include <algorithm>
#include <array>
#include <span>
#include <thread>

#include "base/hex.hpp"
#include "memory/cuda/cuda_platform.hpp"

namespace cairn {
namespace {

// As many as a busy server has in progress: a part of a job has two.
constexpr std::size_t kMaxKeptEvents = 64;

// The errors after which CUDA returns only errors for this device: its reference says that the
// process must be restarted. An unknown internal error counts too, because nothing is known about
// the bytes that were moving.
bool is_sticky(cudaError_t error) {
  switch (error) {
    case cudaErrorDevicesUnavailable:
    case cudaErrorDeviceUninitialized:
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorContained:
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorContextIsDestroyed:
    case cudaErrorAssert:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure:
    case cudaErrorTensorMemoryLeak:
    case cudaErrorMpsClientTerminated:
    case cudaErrorExternalDevice:
    case cudaErrorUnknown:
      return true;
    default:
      return false;
  }
}

// In nvidia-smi's form: groups of 8, 4, 4, 4 and 12 hex digits.
std::string uuid_text(const cudaUUID_t& uuid) {
  std::string hex = to_hex(std::as_bytes(std::span(uuid.bytes)));
  for (const std::size_t at : {20u, 16u, 12u, 8u}) hex.insert(at, "-");
  return "GPU-" + hex;
}

// Between two checks whether work has ended: short compared with an allocation.
constexpr std::chrono::microseconds kAskAgain{50};

// "0000:3b:00.0" and its end; CUDA asks for 13 bytes at least.
constexpr int kPciBusIdBytes = 32;

}  // namespace

std::string cuda_message(cudaError_t outcome, CudaCall call) {
  std::string text = std::string(call.name) + " to " + call.purpose;
  if (call.size_bytes != 0) text += " (" + std::to_string(call.size_bytes) + " bytes)";
  return text + ": " + cudaGetErrorString(outcome) + " (" + cudaGetErrorName(outcome) + ")";
}

Result<std::unique_ptr<CudaDevice>> CudaDevice::open(int id, HangTimeout hang_timeout) {
  std::unique_ptr<CudaDevice> device(new CudaDevice(id, hang_timeout));
  if (auto described = device->describe(); !described) {
    return Error{ErrorCode::unavailable, "CUDA device " + std::to_string(id) +
                                             " does not answer: " + described.error().detail};
  }
  return device;
}

Result<> CudaDevice::describe() {
  const int id = info_.id;
  cudaDeviceProp properties{};
  CAIRN_TRY(check(cudaGetDeviceProperties(&properties, id),
                  {"cudaGetDeviceProperties", "describe the device"}));
  info_.name = properties.name;
  info_.uuid = uuid_text(properties.uuid);
  info_.total_bytes = properties.totalGlobalMem;
  const auto ask = [this](cudaDeviceAttr which, const char* purpose, bool& fact) -> Result<> {
    const auto value = attribute(which, purpose);
    if (!value) return value.error();
    fact = *value != 0;
    return {};
  };
  CAIRN_TRY(ask(cudaDevAttrCanUseHostPointerForRegisteredMem, "ask where it sees registered memory",
                memory_facts_.host_pointer_for_registered));
  CAIRN_TRY(
      ask(cudaDevAttrIntegrated, "ask whether it has memory of its own", memory_facts_.integrated));
  CAIRN_TRY(ask(cudaDevAttrPageableMemoryAccess, "ask whether it reaches host memory",
                memory_facts_.pageable_memory_access));
  CAIRN_TRY(ask(cudaDevAttrPageableMemoryAccessUsesHostPageTables, "ask how it reaches host memory",
                memory_facts_.uses_host_page_tables));
  CAIRN_TRY(ask(cudaDevAttrConcurrentManagedAccess, "ask how it shares managed memory",
                concurrent_managed_access_));
  const auto multiprocessors =
      attribute(cudaDevAttrMultiProcessorCount, "ask how many multiprocessors it has");
  if (!multiprocessors) return multiprocessors.error();
  multiprocessors_ = static_cast<std::uint32_t>(std::max(*multiprocessors, 1));
  std::array<char, kPciBusIdBytes> bus_id{};
  CAIRN_TRY(check(cudaDeviceGetPCIBusId(bus_id.data(), kPciBusIdBytes, id),
                  {"cudaDeviceGetPCIBusId", "find its NUMA node"}));
  info_.numa_node = numa_node_of_pci_device(bus_id.data());
  CAIRN_TRY(enter());
  // A thread that must wait in the driver sleeps: the default spins on a core.
  CAIRN_TRY(check(cudaSetDeviceFlags(cudaDeviceScheduleBlockingSync),
                  {"cudaSetDeviceFlags", "let waiting threads sleep"}));
  return check(cudaStreamCreateWithFlags(&filler_, cudaStreamNonBlocking),
               {"cudaStreamCreateWithFlags", "make a stream for zeros"});
}

Result<int> CudaDevice::attribute(cudaDeviceAttr which, const char* purpose) {
  int value = 0;
  CAIRN_TRY(
      check(cudaDeviceGetAttribute(&value, which, info_.id), {"cudaDeviceGetAttribute", purpose}));
  return value;
}

CudaDevice::CudaDevice(int id, HangTimeout hang_timeout) : hang_timeout_(hang_timeout) {
  info_.id = id;
  events_.reserve(kMaxKeptEvents);
}

CudaDevice::~CudaDevice() {
  for (const cudaEvent_t event : events_) end_event(event);
  // A hanging device may have work on it; it ends with the process.
  if (filler_ == nullptr || hangs()) return;
  check_release(cudaStreamDestroy(filler_), {"cudaStreamDestroy", "end the stream for zeros"});
}

Result<cudaEvent_t> CudaDevice::take_event() {
  {
    MutexLock lock(mutex_);
    if (!events_.empty()) {
      const cudaEvent_t kept = events_.back();
      events_.pop_back();
      return kept;
    }
  }
  cudaEvent_t made = nullptr;
  CAIRN_TRY(check(cudaEventCreateWithFlags(&made, cudaEventDisableTiming),
                  {"cudaEventCreateWithFlags", "make an event"}));
  return made;
}

void CudaDevice::give_event(cudaEvent_t event, bool was_reached) {
  // Other streams may still wait for it, so its recorded state stays until it ends.
  if (was_reached) {
    MutexLock lock(mutex_);
    if (events_.size() < events_.capacity()) return events_.push_back(event);
  }
  end_event(event);
}

void CudaDevice::end_event(cudaEvent_t event) {
  check_release(cudaEventDestroy(event), {"cudaEventDestroy", "end an event"});
}

Result<> CudaDevice::enter() {
  CAIRN_TRY(alive());
  return check(cudaSetDevice(info_.id), {"cudaSetDevice", "use the device"});
}

Result<> CudaDevice::check(cudaError_t outcome, CudaCall call) {
  if (outcome == cudaSuccess) [[likely]]
    return {};
  return fail(outcome, cuda_message(outcome, call));
}

Error CudaDevice::fail(cudaError_t outcome, const std::string& message) {
  static_cast<void>(cudaGetLastError());
  if (is_sticky(outcome)) {
    mark_lost(message);
    return {ErrorCode::device_error, *lost()};
  }
  return {outcome == cudaErrorMemoryAllocation ? ErrorCode::no_capacity : ErrorCode::device_error,
          "device " + std::to_string(info_.id) + ": " + message};
}

void CudaDevice::check_release(cudaError_t outcome, CudaCall call) {
  static_cast<void>(check(outcome, call).has_value());
}

void CudaDevice::note_waiting(Moment since, Moment now) {
  if (now - since < hang_timeout_ || !alive()) return;
  mark_hanging("it has not ended its work within " + std::to_string(hang_timeout_.count()) + " ms");
}

void CudaDevice::drain(cudaStream_t stream) {
  const Moment since = std::chrono::steady_clock::now();
  // The first failure of a query is nearly always the late report of other work.
  for (int failures = 0; failures < 2 && unbroken();) {
    const auto ended = has_ended(stream, "wait for a stream");
    if (ended && *ended) return;
    if (!ended) {
      ++failures;
      continue;
    }
    note_waiting(since, std::chrono::steady_clock::now());
    std::this_thread::sleep_for(kAskAgain);
  }
  mark_lost("nobody can tell whether the work of a stream has ended");
}

Result<> CudaDevice::zero_now(void* destination, std::uint64_t size_bytes) {
  MutexLock lock(filling_);
  CAIRN_TRY(enter());
  CAIRN_TRY(check(cudaMemsetAsync(destination, 0, size_bytes, filler_),
                  {"cudaMemsetAsync", "clear new memory", size_bytes}));
  const Moment since = std::chrono::steady_clock::now();
  for (;;) {
    const auto ended = has_ended(filler_, "clear new memory");
    if (!ended) {
      // The memory is about to be freed: nothing may write to it any more.
      drain(filler_);
      return ended.error();
    }
    if (*ended) return {};
    note_waiting(since, std::chrono::steady_clock::now());
    CAIRN_TRY(alive());
    std::this_thread::sleep_for(kAskAgain);
  }
}

Result<bool> CudaDevice::has_ended(cudaStream_t stream, const char* purpose) {
  const cudaError_t outcome = cudaStreamQuery(stream);
  if (outcome == cudaErrorNotReady) {
    static_cast<void>(cudaGetLastError());  // not an error, but CUDA records it as one
    return false;
  }
  CAIRN_TRY(check(outcome, {"cudaStreamQuery", purpose}));
  return true;
}

Result<> CudaDevice::probe() {
  CAIRN_TRY(alive());
  const auto ended = has_ended(filler_, "see whether the device still works");
  if (!ended) return ended.error();
  return {};
}

Result<> CudaDevice::alive() const {
  if (health_.load(std::memory_order_acquire) == Health::works) [[likely]]
    return {};
  return Error{ErrorCode::device_error, *lost()};
}

Result<> CudaDevice::unbroken() const {
  if (health_.load(std::memory_order_acquire) != Health::broken) [[likely]]
    return {};
  return Error{ErrorCode::device_error, *lost()};
}

std::optional<std::string> CudaDevice::lost() const {
  if (health_.load(std::memory_order_acquire) == Health::works) return std::nullopt;
  MutexLock lock(mutex_);
  return "device " + std::to_string(info_.id) + " is lost: " + why_lost_;
}

void CudaDevice::mark(Health health, const std::string& why) {
  MutexLock lock(mutex_);
  const Health before = health_.load(std::memory_order_relaxed);
  if (before == Health::works) why_lost_ = why;  // the first reason is the cause
  health_.store(std::max(before, health), std::memory_order_release);
}

}  // namespace cairn
