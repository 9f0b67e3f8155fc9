#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <vector>

#include "base/cache_line.hpp"
#include "base/mutex.hpp"
#include "memory/cuda/cuda_context.hpp"
#include "memory/cuda/cuda_copy_plan.hpp"
#include "memory/device_runtime.hpp"
#include "memory/strided_runs.hpp"

namespace cairn {

// A non-blocking CUDA stream: it does not wait for the NULL stream, nor the NULL stream for it.
// Copies that are not between pinned memory and a device may block the caller while they run.
class alignas(kCacheLineBytes) CudaStream final : public Stream {
 public:
  // REQUIRES: the context has the device.
  static Result<std::unique_ptr<CudaStream>> create(std::shared_ptr<CudaContext> context,
                                                    int device_id);
  ~CudaStream() override;
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;

  using Stream::copy;
  Result<> copy(std::span<const MemoryCopy> copies, CopyForm form, const RegionView& list) override;
  Result<> zero(std::byte* destination, std::uint64_t size_bytes) override;
  Result<> prefetch(const RegionView& unified, int device_id) override;
  Result<std::unique_ptr<Event>> record() override;
  Result<> synchronize() override;
  Result<> wait_for(Event& event) override;
  void* native() const override { return stream_; }

  // For other work issued on this stream.
  cudaStream_t handle() const { return stream_; }
  CudaDevice& device() const { return device_; }

 private:
  CudaStream(std::shared_ptr<CudaContext> context, int device_id, cudaStream_t stream);
  Result<> copy_one(const MemoryCopy& copy);
  // Between the device and pinned memory, or within the device.
  Result<> copy_directly(CopyForm form);
  Result<> copy_many(std::span<const MemoryCopy> copies);
  Result<> copy_batch(std::span<const MemoryCopy> copies);
  Result<> copy_rows();
  bool lies_in_one_piece(const StridedCopy& run) const;
  Result<> copy_by_kernel(std::span<const MemoryCopy> copies);
  bool crosses_bus(std::span<const MemoryCopy> copies) const;
  Result<> zero_pageable(std::byte* destination, std::uint64_t size_bytes);
  void rely_on(CudaDevice& device);

  const std::shared_ptr<CudaContext> context_;
  CudaDevice& device_;
  const int device_id_;
  const cudaStream_t stream_;
  Mutex mutex_;  // any thread may call record()
  std::vector<CudaDevice*> relies_on_
      CAIRN_GUARDED_BY(mutex_);  // others than device_; see CudaEvent::Origin
  // Of the latest copy, kept to reuse their memory.
  CudaCopyPlan plan_;
  std::vector<void*> destinations_;
  std::vector<const void*> sources_;
  std::vector<std::size_t> sizes_;
};

static_assert(alignof(CudaStream) == kCacheLineBytes);

}  // namespace cairn
