#include "memory/cuda/cuda_runtime.hpp"

#include <algorithm>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "base/assert.hpp"
#include "memory/cuda/cuda_context.hpp"
#include "memory/cuda/cuda_ipc.hpp"
#include "memory/cuda/cuda_memory.hpp"
#include "memory/cuda/cuda_platform.hpp"
#include "memory/cuda/cuda_stream.hpp"
#include "memory/cuda/cuda_vmm.hpp"

namespace cairn {
namespace {

class CudaRuntime final : public DeviceRuntime {
 public:
  explicit CudaRuntime(std::shared_ptr<CudaContext> context) : context_(std::move(context)) {
    for (const auto& device : context_->devices) devices_.push_back(device->info());
    visibility_ = cuda_visibility(std::ranges::all_of(
        context_->devices, [](const auto& device) { return device->concurrent_managed_access(); }));
  }

  std::string_view name() const override { return "cuda"; }
  std::span<const DeviceInfo> devices() const override { return devices_; }
  MemoryVisibility visibility() const override { return visibility_; }
  std::optional<std::string> lost() const override {
    for (const auto& device : context_->devices) {
      if (auto why = device->lost()) return why;
    }
    return std::nullopt;
  }

  Result<Region> allocate_device(std::uint64_t size_bytes, DeviceOptions options) override {
    CAIRN_TRY(check_device(options.device_id));
    const CudaMemoryRequest request{options.device_id, size_bytes};
    return options.by_descriptor ? allocate_cuda_vmm(context_, request)
                                 : allocate_cuda_device(context_, request);
  }
  Result<Region> allocate_pinned(std::uint64_t size_bytes, PinnedOptions options) override {
    CAIRN_TRY(check_device(options.device_id));
    return allocate_cuda_pinned(
        context_, {.memory = {options.device_id, size_bytes}, .numa_aware = options.numa_aware});
  }
  Result<Region> allocate_unified(int device_id, std::uint64_t size_bytes) override {
    CAIRN_TRY(check_device(device_id));
    return allocate_cuda_unified(context_, {device_id, size_bytes});
  }
  Result<Region> import_memory(const ExportedMemory& memory, ImportOptions options) override {
    CAIRN_TRY(check_device(options.device_id));
    if (options.kind == StorageKind::device) {
      return memory.kind == ExportedMemory::Kind::cuda_vmm_fd
                 ? import_cuda_vmm(context_, memory, options.device_id)
                 : import_cuda_memory(context_, memory, options.device_id);
    }
    if (memory.kind == ExportedMemory::Kind::cuda_ipc ||
        memory.kind == ExportedMemory::Kind::cuda_vmm_fd) {
      return Error{ErrorCode::impossible, "host memory is not imported by what opens a GPU's: " +
                                              std::string(to_string(memory.kind))};
    }
    auto mapped = map_exported_memory({.memory = memory, .kind = StorageKind::pinned});
    if (!mapped) return mapped;
    return pin_cuda_memory(context_, std::move(*mapped), options.device_id);
  }
  Result<std::unique_ptr<Stream>> create_stream(int device_id) override {
    CAIRN_TRY(check_device(device_id));
    auto stream = CudaStream::create(context_, device_id);
    if (!stream) return std::move(stream).error();
    return std::unique_ptr<Stream>(std::move(*stream));
  }

 private:
  Result<> check_device(int device_id) const {
    if (device_id >= 0 && static_cast<std::size_t>(device_id) < devices_.size()) return {};
    return Error{ErrorCode::out_of_range, "there is no device " + std::to_string(device_id) +
                                              "; the CUDA runtime has 0 to " +
                                              std::to_string(devices_.size() - 1)};
  }

  const std::shared_ptr<CudaContext> context_;
  std::vector<DeviceInfo> devices_;
  MemoryVisibility visibility_ = MemoryVisibility::explicit_dma;
};

// Lets two devices copy to each other without a stop in host memory. Where it fails they copy with
// one.
void connect_peers(CudaContext& context) {
  for (const auto& device : context.devices) {
    for (const auto& peer : context.devices) {
      const int peer_id = peer->info().id;
      int possible = 0;
      if (peer == device || !device->enter() ||
          !device->check(cudaDeviceCanAccessPeer(&possible, device->info().id, peer_id),
                         {"cudaDeviceCanAccessPeer", "see whether devices reach each other"}) ||
          possible == 0) {
        continue;
      }
      device->check_release(cudaDeviceEnablePeerAccess(peer_id, 0),
                            {"cudaDeviceEnablePeerAccess", "connect two devices"});
    }
  }
}

}  // namespace

Result<std::unique_ptr<DeviceRuntime>> make_cuda_runtime(CudaRuntimeOptions options) {
  CAIRN_ASSERT(options.register_piece_bytes > 0 && options.register_piece_bytes % 4096 == 0,
               "CUDA registers whole pages");
  int count = 0;
  const cudaError_t counted = cudaGetDeviceCount(&count);
  if (counted != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
    return Error{ErrorCode::unavailable,
                 cuda_message(counted, {"cudaGetDeviceCount", "find CUDA devices"})};
  }
  if (count == 0) return Error{ErrorCode::unavailable, "the machine has no CUDA device"};
  try {
    auto context = std::make_shared<CudaContext>(options.register_piece_bytes);
    for (int id = 0; id < count; ++id) {
      auto device = CudaDevice::open(id);
      if (!device) return std::move(device).error();
      context->devices.push_back(std::move(*device));
    }
    connect_peers(*context);
    return std::unique_ptr<DeviceRuntime>(std::make_unique<CudaRuntime>(std::move(context)));
  } catch (const std::system_error& failure) {
    return Error{ErrorCode::unavailable,
                 std::string("no thread to poll CUDA events: ") + failure.what()};
  }
}

Result<std::unique_ptr<DeviceRuntime>> make_cuda_runtime() {
  return make_cuda_runtime(CudaRuntimeOptions{});
}

}  // namespace cairn
