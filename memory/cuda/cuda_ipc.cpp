#include "memory/cuda/cuda_ipc.hpp"

#include <cuda_runtime_api.h>

#include <cstring>
#include <utility>

#include "memory/cuda/cuda_driver.hpp"
#include "memory/mapping.hpp"

namespace cairn {
namespace {

static_assert(sizeof(cudaIpcMemHandle_t) == kCudaIpcHandleBytes);

struct Block {
  std::byte* begin = nullptr;
  std::uint64_t size_bytes = 0;
};

// CUDA's block at an address. Only the driver knows it.
Result<Block> block_of(CudaDevice& device, const std::byte* address) {
  auto driver = CudaDriver::load(device);
  if (!driver) return std::move(driver).error();
  CUdeviceptr base = 0;
  std::size_t size_bytes = 0;
  CAIRN_TRY(driver->check(
      device,
      driver->get_address_range(&base, &size_bytes, reinterpret_cast<std::uintptr_t>(address)),
      {"cuMemGetAddressRange", "find where memory begins"}));
  return Block{reinterpret_cast<std::byte*>(base), size_bytes};
}

// Another process's memory, opened here.
class CudaImported final : public RegionBacking {
 public:
  CudaImported(std::shared_ptr<CudaContext> context, CudaDevice& device, ExportedMemory memory,
               void* base)
      : context_(std::move(context)), device_(device), memory_(std::move(memory)), base_(base) {}
  ~CudaImported() override {
    if (begin_ != nullptr) context_->addresses.erase(begin_);
    if (device_.hangs()) return;
    device_.check_release(cudaIpcCloseMemHandle(base_),
                          {"cudaIpcCloseMemHandle", "let go of imported memory"});
  }

  Result<Region::Parts> parts(int device_id) {
    auto block = block_of(device_, static_cast<std::byte*>(base_));
    if (!block) return std::move(block).error();
    if (memory_.offset_bytes > block->size_bytes ||
        memory_.size_bytes > block->size_bytes - memory_.offset_bytes) {
      return Error{ErrorCode::impossible, "the handle opens " + std::to_string(block->size_bytes) +
                                              " bytes; size_bytes is " +
                                              std::to_string(memory_.size_bytes) + " at " +
                                              std::to_string(memory_.offset_bytes)};
    }
    begin_ = block->begin + memory_.offset_bytes;
    context_->addresses.insert({.begin = begin_,
                                .size_bytes = memory_.size_bytes,
                                .kind = StorageKind::device,
                                .device_id = device_id,
                                .piece_bytes = memory_.size_bytes});
    return Region::Parts{.kind = StorageKind::device,
                         .device_id = device_id,
                         .data = begin_,
                         .size_bytes = memory_.size_bytes};
  }
  Result<ExportedMemory> share(const Region&) const override { return memory_; }

 private:
  const std::shared_ptr<CudaContext> context_;
  CudaDevice& device_;
  const ExportedMemory memory_;
  void* const base_;
  std::byte* begin_ = nullptr;  // once it is in the address map
};

}  // namespace

Result<ExportedMemory> export_cuda_memory(CudaDevice& device, const CudaBytes& bytes) {
  CAIRN_TRY(device.enter());
  auto block = block_of(device, bytes.begin);
  if (!block) return std::move(block).error();
  cudaIpcMemHandle_t handle{};
  CAIRN_TRY(device.check(cudaIpcGetMemHandle(&handle, block->begin),
                         {"cudaIpcGetMemHandle", "export device memory", bytes.size_bytes}));
  return ExportedMemory{
      .kind = ExportedMemory::Kind::cuda_ipc,
      .handle = std::string(reinterpret_cast<const char*>(&handle), sizeof handle),
      .device_id = bytes.device_id,
      .offset_bytes = static_cast<std::uint64_t>(bytes.begin - block->begin),
      .size_bytes = bytes.size_bytes};
}

Result<Region> import_cuda_memory(std::shared_ptr<CudaContext> context,
                                  const ExportedMemory& memory, int device_id) {
  if (memory.kind != ExportedMemory::Kind::cuda_ipc ||
      memory.handle.size() != kCudaIpcHandleBytes) {
    return Error{ErrorCode::impossible,
                 "a GPU's memory is imported by a handle of cuda_ipc or a "
                 "descriptor of cuda_vmm_fd, not " +
                     std::string(to_string(memory.kind))};
  }
  CAIRN_TRY(check_region_size("imported memory", memory.size_bytes));
  CudaDevice& device = *context->devices[static_cast<std::size_t>(device_id)];
  CAIRN_TRY(device.enter());
  cudaIpcMemHandle_t handle{};
  std::memcpy(&handle, memory.handle.data(), sizeof handle);
  void* base = nullptr;
  const cudaError_t opened = cudaIpcOpenMemHandle(&base, handle, cudaIpcMemLazyEnablePeerAccess);
  if (opened != cudaSuccess) {
    // For a handle that it cannot open, CUDA returns codes that otherwise mean a lost device; a
    // client's mistake must not be mistaken for that. The device itself shows whether it is lost.
    static_cast<void>(cudaGetLastError());
    CAIRN_TRY(device.probe());
    return Error{
        opened == cudaErrorMemoryAllocation ? ErrorCode::no_capacity : ErrorCode::impossible,
        cuda_message(opened, {"cudaIpcOpenMemHandle", "import device memory", memory.size_bytes})};
  }
  auto backing = std::make_unique<CudaImported>(std::move(context), device, memory, base);
  auto parts = backing->parts(device_id);
  if (!parts) return std::move(parts).error();
  return Region::adopt(*parts, std::move(backing));
}

}  // namespace cairn
