#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/result.hpp"
#include "base/unique_function.hpp"
#include "memory/memory_copy.hpp"
#include "memory/region.hpp"

namespace cairn {

struct DeviceInfo {
  int id = 0;
  std::string name;
  std::uint64_t total_bytes = 0;
  int numa_node = -1;  // -1: not known, or the machine has one node
  // The same in every process on the machine, however it counts its devices. A GPU's as its driver
  // writes it ("GPU-" and a UUID); of the host runtime, whose devices are nobody else's, a name.
  std::string uuid = {};
};

// A device that is there and did not open.
struct LeftOutDevice {
  int id = 0;
  std::string why;  // a sentence that names it
};

// How far a CPU write reaches without an explicit copy.
enum class MemoryVisibility : std::uint8_t {
  system,        // host and devices see one coherent memory
  device,        // device scope only (a paravirtualised GPU)
  explicit_dma,  // every exchange is a copy
};

std::string_view to_string(MemoryVisibility visibility);

// A point in a stream. Thread-safe.
class Event {
 public:
  virtual ~Event() = default;
  // True once all work before the point has ended; the error of the first piece of it that failed.
  virtual Result<bool> ready() = 0;
  // Blocks until ready() would not be false.
  virtual Result<> wait() = 0;
  // Calls `then` once ready() would not be false: perhaps in this call, else on a thread that
  // others wait for. It must not block, and the event stays until it was called. Throws
  // std::bad_alloc, and then calls nothing.
  virtual void when_reached(UniqueFunction<void()> then) = 0;
};

// Work that runs in the order it was issued, while the caller goes on. Issue from one thread at a
// time; only record() may be called from any thread at any time. The destructor waits for what was
// issued.
class Stream {
 public:
  virtual ~Stream() = default;
  // Any two memory kinds but disk. Sources must stay as they are, and both sides allocated, until
  // an event recorded after this is ready. The order among the copies of one call is not defined:
  // they must not overlap. May block while it runs where one side is system memory or none is of a
  // device.
  virtual Result<> copy(std::span<const MemoryCopy> copies, CopyForm form) = 0;
  Result<> copy(std::span<const MemoryCopy> copies) { return copy(copies, CopyForm::batch); }
  // Fills with zeros.
  virtual Result<> zero(std::byte* destination, std::uint64_t size_bytes) = 0;
  // Moves unified memory to where `device_id` (or, for -1, the CPU) will use it; only a hint.
  virtual Result<> prefetch(const RegionView& unified, int device_id) = 0;
  virtual Result<std::unique_ptr<Event>> record() = 0;
  // Blocks until all work that was issued has ended; the error of the first piece that failed.
  virtual Result<> synchronize();
  // Work issued after this starts only when the event is ready.
  virtual Result<> wait_for(Event& event) = 0;
  // What a library beside this one that works on the same devices takes for it: of `cuda` a
  // cudaStream_t, of `host` null.
  virtual void* native() const { return nullptr; }
};

// The devices of a machine, their memory and streams. Two real implementations: `host` needs no GPU
// (its devices are memory of this machine, its streams are threads), `cuda` drives NVIDIA's.
// Thread-safe. Errors: no_capacity where memory runs out, out_of_range for an unknown device,
// device_error else.
class DeviceRuntime {
 public:
  virtual ~DeviceRuntime() = default;
  virtual std::string_view name() const = 0;  // "host" or "cuda"
  virtual std::span<const DeviceInfo> devices() const = 0;
  virtual MemoryVisibility visibility() const = 0;
  // Those that could not be opened: no operation takes them, and the others keep their ids.
  virtual std::span<const LeftOutDevice> left_out() const { return {}; }
  // Why a device works no more, as a sentence that names it: every operation that needs it fails
  // with device_error, until the process starts anew. Nothing while all work.
  virtual std::optional<std::string> lost() const = 0;
  // For who waited for the device longer than it may take: it is lost from now on, and nothing of
  // its memory is given back, as work on it may still write there. The host runtime's are never.
  virtual void declare_lost(int device_id, const std::string& why) {
    static_cast<void>(device_id);
    static_cast<void>(why);
  }

  // Zeroed, aligned to 4 KiB at least. A zero size is refused.
  struct DeviceOptions {
    int device_id = 0;
    // Other processes open it by a descriptor instead of a handle of CUDA IPC. On the host runtime
    // all memory has one.
    bool by_descriptor = false;
  };
  virtual Result<Region> allocate_device(std::uint64_t size_bytes, DeviceOptions options) = 0;
  struct PinnedOptions {
    bool numa_aware =
        false;  // bind to the node of `device_id`, where the machine has several nodes
    int device_id = 0;
  };
  virtual Result<Region> allocate_pinned(std::uint64_t size_bytes, PinnedOptions options) = 0;
  // Memory that moves between the device and the host as it is used; there may be more of it than
  // the device has. impossible where the device cannot, by its name.
  virtual Result<Region> allocate_unified(int device_id, std::uint64_t size_bytes) = 0;
  // What lies at an address that this runtime gave out; all else is taken for system memory.
  struct AddressInfo {
    StorageKind kind = StorageKind::system;
    int device_id = -1;  // of a device's memory
  };
  virtual AddressInfo at(const std::byte* address) const {
    static_cast<void>(address);
    return {};
  }
  // Memory that another process exported, fit for copies as this runtime's own is; what it holds
  // stays. impossible for a kind of export that the runtime does not take for that memory; else as
  // map_exported_memory().
  struct ImportOptions {
    StorageKind kind = StorageKind::pinned;  // or device
    int device_id = 0;
  };
  virtual Result<Region> import_memory(const struct ExportedMemory& memory,
                                       ImportOptions options) = 0;
  virtual Result<std::unique_ptr<Stream>> create_stream(int device_id) = 0;
};

struct HostRuntimeOptions {
  std::uint32_t devices = 1;       // 1 to 64
  std::uint64_t device_bytes = 0;  // memory of each; 0: as much as the machine has
};
Result<std::unique_ptr<DeviceRuntime>> make_host_runtime(HostRuntimeOptions options);

// The GPUs that CUDA shows (CUDA_VISIBLE_DEVICES chooses them); one that does not open is left out.
// unavailable, with the reason, where the program was built without the CUDA toolkit, or CUDA finds
// no driver or no GPU; device_error where there are GPUs and none opens.
Result<std::unique_ptr<DeviceRuntime>> make_cuda_runtime();

}  // namespace cairn
