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
  int numa_node = -1;  // -1: unknown, or the machine has one node
  // The same in every process on the machine, however it counts its devices. A GPU's in its
  // driver's form ("GPU-" and a UUID); a name for devices of the host runtime, which are private to
  // it.
  std::string uuid = {};
};

// A device that exists but did not open.
struct LeftOutDevice {
  int id = 0;
  std::string why;  // a sentence that names it
};

// How far a CPU write is visible without an explicit copy.
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
  // Returns true once all work before the point has ended; the error of the first piece of it that
  // failed.
  virtual Result<bool> ready() = 0;
  // Blocks until ready() would not return false.
  virtual Result<> wait() = 0;
  // Calls `then` once ready() would not return false: perhaps in this call, else on a shared
  // thread. It must not block, and the event must exist until it was called. If this throws
  // std::bad_alloc, `then` is not called.
  virtual void when_reached(UniqueFunction<void()> then) = 0;
};

// Work that runs in the order of issue, while the caller continues. Issue from one thread at a
// time; only record() may be called from any thread at any time. The destructor waits for the
// issued work.
class Stream {
 public:
  virtual ~Stream() = default;
  // Any two memory kinds except disk. Sources must not change, and both sides must stay allocated,
  // until an event recorded after this is ready. The order among the copies of one call is not
  // defined: they must not overlap. May block while it runs if one side is system memory or neither
  // is device memory.
  //
  // `list` is memory of the stream's device, of list_bytes() or more, where the stream keeps what
  // it has to do. It must stay unchanged, and allocated, as long as the sources. Without it the
  // stream keeps the list by itself.
  virtual Result<> copy(std::span<const MemoryCopy> copies, CopyForm form,
                        const RegionView& list) = 0;
  Result<> copy(std::span<const MemoryCopy> copies, CopyForm form) {
    return copy(copies, form, RegionView());
  }
  Result<> copy(std::span<const MemoryCopy> copies) { return copy(copies, CopyForm::batch); }
  // Device memory that this stream uses for a list of `copies` copies; 0: they travel with the work
  // itself.
  virtual std::uint64_t list_bytes(std::size_t copies) const {
    static_cast<void>(copies);
    return 0;
  }
  // Fills with zeros.
  virtual Result<> zero(std::byte* destination, std::uint64_t size_bytes) = 0;
  // Moves unified memory to the side that will use it: `device_id` or, for -1, the CPU; only a
  // hint.
  virtual Result<> prefetch(const RegionView& unified, int device_id) = 0;
  virtual Result<std::unique_ptr<Event>> record() = 0;
  // Blocks until all issued work has ended; the error of the first piece that failed.
  virtual Result<> synchronize();
  // Work issued after this starts only when the event is ready.
  virtual Result<> wait_for(Event& event) = 0;
  // The native handle, for another library that works on the same devices: of `cuda` a
  // cudaStream_t, of `host` null.
  virtual void* native() const { return nullptr; }
};

// The devices of a machine, their memory and streams. Two implementations: `host` needs no GPU (its
// devices are memory of this machine, its streams are threads), `cuda` drives NVIDIA's.
// Thread-safe. Errors: no_capacity if memory runs out, out_of_range for an unknown device,
// otherwise device_error.
class DeviceRuntime {
 public:
  virtual ~DeviceRuntime() = default;
  virtual std::string_view name() const = 0;  // "host" or "cuda"
  virtual std::span<const DeviceInfo> devices() const = 0;
  virtual MemoryVisibility visibility() const = 0;
  // Those that could not be opened: operations do not accept them, and the others keep their ids.
  virtual std::span<const LeftOutDevice> left_out() const { return {}; }
  // Why a device no longer works, as a sentence that names it: every operation that needs it fails
  // with device_error until the process restarts. nullopt while all work.
  virtual std::optional<std::string> lost() const = 0;
  // Call after a device timeout: the device is lost from now on, and none of its memory is freed,
  // because its work may still write there. Devices of the host runtime are never lost.
  virtual void declare_lost(int device_id, const std::string& why) {
    static_cast<void>(device_id);
    static_cast<void>(why);
  }

  // Zeroed, aligned to at least 4 KiB. A zero size is refused.
  struct DeviceOptions {
    int device_id = 0;
    // Other processes open it by a descriptor instead of a handle of CUDA IPC. On the host runtime
    // all memory has one.
    bool by_descriptor = false;
  };
  virtual Result<Region> allocate_device(std::uint64_t size_bytes, DeviceOptions options) = 0;
  struct PinnedOptions {
    bool numa_aware = false;  // bind to the node of `device_id`, if the machine has several nodes
    int device_id = 0;
    SharedFilePlace place = {};  // its file must be of memory that this runtime allocated
  };
  virtual Result<Region> allocate_pinned(std::uint64_t size_bytes, PinnedOptions options) = 0;
  // Memory that moves between device and host as it is used; there can be more of it than the
  // device has. impossible, naming the device, if the device does not support it.
  virtual Result<Region> allocate_unified(int device_id, std::uint64_t size_bytes) = 0;
  // The memory at an address that this runtime allocated; all other memory counts as system memory.
  struct AddressInfo {
    StorageKind kind = StorageKind::system;
    int device_id = -1;  // of a device's memory
  };
  virtual AddressInfo at(const std::byte* address) const {
    static_cast<void>(address);
    return {};
  }
  // Memory that another process exported, usable in copies like this runtime's own; its contents
  // stay. impossible for a kind of export that the runtime does not accept for that memory; else as
  // map_exported_memory().
  struct ImportOptions {
    StorageKind kind = StorageKind::pinned;  // or device
    int device_id = 0;
  };
  virtual Result<Region> import_memory(const struct ExportedMemory& memory,
                                       ImportOptions options) = 0;
  virtual Result<std::unique_ptr<Stream>> create_stream(int device_id) = 0;
};

// Empty if the runtime does not have the device, or the device has no UUID.
std::string uuid_of(const DeviceRuntime& runtime, int device_id);

}  // namespace cairn
