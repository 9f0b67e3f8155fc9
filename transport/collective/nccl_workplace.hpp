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

// What a device works on although nobody waits for it any more: it stays as it is, until the
// process ends. Thread-safe.
class LeftBehind {
 public:
  LeftBehind();
  ~LeftBehind();
  void take(std::unique_ptr<NcclWorkplace> place);

 private:
  Mutex mutex_;
  std::vector<std::unique_ptr<NcclWorkplace>> places_ CAIRN_GUARDED_BY(mutex_);
};

// What all communicators of this process share. All of it outlives them.
struct NcclGround {
  const NcclLibrary& nccl;
  DeviceRuntime& runtime;
  DeviceMemory& memory;
  LeftBehind& left_behind;
  std::map<int, std::shared_ptr<ReductionCounts>> reductions;  // by device
};

// A communicator's stream and memory, and the way of a call's bytes to where NCCL takes them and
// back. What lies in one piece of the device's memory stays where it is; the rest goes through a
// buffer on the device. The device never writes to host memory but the workplace's own: it can be
// left behind with it.
class NcclWorkplace {
 public:
  // unavailable where the runtime's streams are none of CUDA's.
  static Result<std::unique_ptr<NcclWorkplace>> open(const NcclGround& ground, int device_id);
  // Waits for the stream.
  ~NcclWorkplace();
  NcclWorkplace(const NcclWorkplace&) = delete;
  NcclWorkplace& operator=(const NcclWorkplace&) = delete;

  cudaStream_t stream() const { return static_cast<cudaStream_t>(stream_->native()); }
  Result<std::unique_ptr<Event>> record() { return stream_->record(); }

  // The parts of a call. Borrows the pieces until the call has ended.
  struct Way {
    bool up = false;    // NCCL reads them
    bool down = false;  // NCCL writes them
  };
  void begin() { parts_.clear(); }
  // Each `cut_bytes` of them are a part of its own, the last one perhaps shorter; 0: one part.
  // Answers how many parts there are before them.
  std::size_t add(std::span<const iovec> pieces, Way way, std::uint64_t cut_bytes);
  // One part in a buffer of the caller's.
  void add_at(std::byte* buffer, std::span<const iovec> pieces, Way way);
  // Gives every part its place and issues the copies up.
  Result<> go_up();
  // Once NCCL is done. Issues the copies down; false where there are none.
  Result<bool> go_down();
  // Once those are done.
  void deliver();

  // Where part `i` is on the device, and how long.
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
    bool direct = false;  // where NCCL takes it
    std::uint64_t bounce_offset = 0;
  };
  NcclWorkplace(const NcclGround& ground, int device_id, std::unique_ptr<Stream> stream);
  void add_part(Part part);
  Result<> reserve(std::uint64_t device_bytes, std::uint64_t bounce_bytes);
  Result<CachingAllocator::Buffer> allocate(std::uint64_t size_bytes);
  bool on_device(const iovec& piece) const;  // on any
  // Read by the device from where it lies.
  bool is_worth_a_copy(const iovec& piece) const;

  DeviceRuntime& runtime_;
  DeviceMemory& memory_;
  const int device_id_;
  std::unique_ptr<Stream> stream_;
  CachingAllocator::Buffer transit_;
  std::optional<Region> bounce_;  // pinned
  ReductionBuffers<CachingAllocator::Buffer> reductions_;
  std::vector<Part> parts_;
  std::vector<MemoryCopy> copies_;
};

}  // namespace cairn
