#pragma once

#include <cuda_runtime_api.h>
#include <sys/uio.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/mutex.hpp"
#include "memory/alloc/caching_allocator.hpp"
#include "transport/collective/nccl_library.hpp"
#include "transport/collective/reduction_buffers.hpp"
#include "transport/copy/device_memory.hpp"

namespace cairn {

class NcclWorkplace;

// Owns workplaces that a lost device may still use. They stay allocated until the process ends.
// Thread-safe.
class LeftBehind {
 public:
  LeftBehind();
  ~LeftBehind();
  void take(std::unique_ptr<NcclWorkplace> place);

 private:
  Mutex mutex_;
  std::vector<std::unique_ptr<NcclWorkplace>> places_ CAIRN_GUARDED_BY(mutex_);
};

// Shared by all communicators of the process; must outlive them.
struct NcclGround {
  const NcclLibrary& nccl;
  DeviceRuntime& runtime;
  DeviceMemory& memory;
  LeftBehind& left_behind;
  std::map<int, std::shared_ptr<ReductionCounts>> reductions;  // by device
};

// The stream and buffers of a communicator. Moves a call's data to where NCCL reads it, and back. A
// part that is contiguous in this device's memory is used in place; others go through a device
// buffer. The device writes only to host memory that the workplace owns, so that a workplace can be
// handed to LeftBehind.
class NcclWorkplace {
 public:
  // Returns unavailable if the runtime's streams are not CUDA streams.
  static Result<std::unique_ptr<NcclWorkplace>> open(const NcclGround& ground, int device_id);
  // Waits for the stream.
  ~NcclWorkplace();
  NcclWorkplace(const NcclWorkplace&) = delete;
  NcclWorkplace& operator=(const NcclWorkplace&) = delete;

  cudaStream_t stream() const { return static_cast<cudaStream_t>(stream_->native()); }
  Result<std::unique_ptr<Event>> record() { return stream_->record(); }

  // The parts of a call. Borrows the pieces until the call ends.
  struct Way {
    bool up = false;    // NCCL reads them
    bool down = false;  // NCCL writes them
  };
  void begin() { parts_.clear(); }
  // Cuts the pieces into parts of `cut_bytes`; the last may be shorter. 0: one part. Returns the
  // number of parts added before.
  std::size_t add(std::span<const iovec> pieces, Way way, std::uint64_t cut_bytes);
  // Adds one part that uses the caller's buffer.
  void add_at(std::byte* buffer, std::span<const iovec> pieces, Way way);
  // Assigns a device address to every part and issues the copies to the device.
  Result<> go_up();
  // Call when NCCL is done. Issues the copies from the device; returns false if there are none.
  Result<bool> go_down();
  // Call when those copies are done. Copies into host memory with the CPU.
  void deliver();

  // Device address and size of part `i`.
  std::size_t parts() const { return parts_.size(); }
  std::byte* data(std::size_t i) const { return parts_[i].data; }
  std::uint64_t size_bytes(std::size_t i) const { return parts_[i].size_bytes; }

  Result<std::byte*> reduction_buffer(const Communicator::AllReduce& call);

 private:
  struct Part {
    std::vector<iovec> pieces = {};
    Way way = {};
    std::uint64_t size_bytes = 0;
    std::byte* data = nullptr;
    bool direct = false;  // NCCL uses it in place
    std::uint64_t bounce_offset = 0;
  };
  NcclWorkplace(const NcclGround& ground, int device_id, std::unique_ptr<Stream> stream);
  void add_part(Part part);
  Result<> reserve(std::uint64_t device_bytes, std::uint64_t bounce_bytes);
  bool on_device(const iovec& piece) const;  // on any device
  // True if the device can copy the piece directly.
  bool is_worth_a_copy(const iovec& piece) const;

  DeviceRuntime& runtime_;
  DeviceMemory& memory_;
  const int device_id_;
  std::unique_ptr<Stream> stream_;
  CachingAllocator::Buffer transit_;
  std::optional<Region> bounce_;  // pinned
  ReductionBuffers<DeviceBuffer> reductions_;
  std::vector<Part> parts_;
  std::vector<MemoryCopy> copies_;
};

}  // namespace cairn
