#include "memory/cuda/cuda_memory.hpp"

#include <string>
#include <utility>

#include "memory/cuda/cuda_ipc.hpp"
#include "memory/mapping.hpp"

namespace cairn {
namespace {

// The minimum alignment of every region of a runtime.
constexpr std::uint64_t kAlignmentBytes = 4096;

std::uint64_t misalignment(const void* address) {
  return reinterpret_cast<std::uintptr_t>(address) % kAlignmentBytes;
}

// An allocation of cudaMalloc or cudaMallocManaged, which are freed in the same way.
class CudaAllocation final : public RegionBacking {
 public:
  // Memory at `base`; the region uses `range` of it.
  CudaAllocation(std::shared_ptr<CudaContext> context, void* base,
                 const CudaAddressMap::Range& range)
      : context_(std::move(context)), base_(base), range_(range) {
    context_->addresses.insert(range_);
  }
  Result<ExportedMemory> share(const Region& region) const override {
    if (region.kind() != StorageKind::device) return RegionBacking::share(region);
    return export_cuda_memory(*context_->devices[static_cast<std::size_t>(range_.device_id)],
                              {region.device_id(), region.data(), region.size_bytes()});
  }
  ~CudaAllocation() override {
    context_->addresses.erase(range_.begin);
    CudaDevice& device = *context_->devices[static_cast<std::size_t>(range_.device_id)];
    if (device.hangs()) return;
    device.check_release(cudaFree(base_), {"cudaFree", "give memory back", range_.size_bytes});
  }

 private:
  const std::shared_ptr<CudaContext> context_;
  void* const base_;
  const CudaAddressMap::Range range_;
};

using Allocate = cudaError_t (*)(void** base, std::size_t size_bytes);
struct CudaMemoryType {
  StorageKind kind;
  CudaCall call;
  Allocate allocate;
};

Result<Region> allocate(std::shared_ptr<CudaContext> context, CudaMemoryRequest request,
                        const CudaMemoryType& type) {
  CAIRN_TRY(check_region_size(to_string(type.kind), request.size_bytes));
  CudaDevice& device = *context->devices[static_cast<std::size_t>(request.device_id)];
  CAIRN_TRY(device.enter());
  const CudaCall call{type.call.name, type.call.purpose, request.size_bytes};
  void* base = nullptr;
  CAIRN_TRY(device.check(type.allocate(&base, request.size_bytes), call));
  std::uint64_t skip_bytes = 0;
  if (misalignment(base) != 0) {
    // CUDA aligns to 256 bytes when it splits a small allocation from a larger one. Asking for more
    // from the start would double the size of a segment of 2 MiB.
    device.check_release(cudaFree(base), {"cudaFree", "give misaligned memory back"});
    CAIRN_TRY(device.check(type.allocate(&base, request.size_bytes + kAlignmentBytes), call));
    skip_bytes = (kAlignmentBytes - misalignment(base)) % kAlignmentBytes;
  }
  const CudaAddressMap::Range range{.begin = static_cast<std::byte*>(base) + skip_bytes,
                                    .size_bytes = request.size_bytes,
                                    .kind = type.kind,
                                    .device_id = request.device_id,
                                    .piece_bytes = request.size_bytes};
  std::byte* const data = static_cast<std::byte*>(base) + skip_bytes;
  auto backing = std::make_unique<CudaAllocation>(std::move(context), base, range);
  CAIRN_TRY(device.zero_now(data, request.size_bytes));
  return Region::adopt({.kind = type.kind,
                        .device_id = request.device_id,
                        .data = data,
                        .size_bytes = request.size_bytes},
                       std::move(backing));
}

}  // namespace

Result<Region> allocate_cuda_device(std::shared_ptr<CudaContext> context,
                                    CudaMemoryRequest request) {
  return allocate(std::move(context), request,
                  {.kind = StorageKind::device,
                   .call = {"cudaMalloc", "allocate device memory"},
                   .allocate = [](void** base, std::size_t size_bytes) {
                     return cudaMalloc(base, size_bytes);
                   }});
}

Result<Region> allocate_cuda_unified(std::shared_ptr<CudaContext> context,
                                     CudaMemoryRequest request) {
  const CudaDevice& device = *context->devices[static_cast<std::size_t>(request.device_id)];
  const DeviceInfo& info = device.info();
  if (!device.concurrent_managed_access()) {
    return Error{ErrorCode::impossible,
                 "device " + std::to_string(info.id) + " (" + info.name +
                     ") has no unified memory that host and device use at once "
                     "(concurrentManagedAccess is 0)"};
  }
  // CUDA returns only addresses: memory that is not on the device must be on the host.
  const std::uint64_t most_bytes = info.total_bytes + context->host_budget->total_bytes();
  if (request.size_bytes > most_bytes) {
    return Error{ErrorCode::no_capacity, std::to_string(request.size_bytes) +
                                             " bytes of unified memory: device " +
                                             std::to_string(info.id) + " and the machine have " +
                                             std::to_string(most_bytes)};
  }
  return allocate(std::move(context), request,
                  {.kind = StorageKind::unified,
                   .call = {"cudaMallocManaged", "allocate unified memory"},
                   .allocate = [](void** base, std::size_t size_bytes) {
                     return cudaMallocManaged(base, size_bytes, cudaMemAttachGlobal);
                   }});
}

}  // namespace cairn
