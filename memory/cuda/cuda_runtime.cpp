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
  CudaRuntime(std::shared_ptr<CudaContext> context, std::vector<LeftOutDevice> left_out)
      : context_(std::move(context)), left_out_(std::move(left_out)) {
    std::vector<CudaMemoryFacts> facts;
    for (const CudaDevice* device : context_->open_devices) {
      devices_.push_back(device->info());
      facts.push_back(device->memory_facts());
    }
    visibility_ = cuda_visibility(facts);
  }

  std::string_view name() const override { return "cuda"; }
  std::span<const DeviceInfo> devices() const override { return devices_; }
  MemoryVisibility visibility() const override { return visibility_; }
  std::span<const LeftOutDevice> left_out() const override { return left_out_; }
  std::optional<std::string> lost() const override {
    for (const CudaDevice* device : context_->open_devices) {
      if (auto why = device->lost()) return why;
    }
    return std::nullopt;
  }
  void declare_lost(int device_id, const std::string& why) override {
    if (check_device(device_id)) {
      context_->devices[static_cast<std::size_t>(device_id)]->mark_hanging(why);
    }
  }
  AddressInfo at(const std::byte* address) const override {
    const auto found = CudaAddressMap::Reader(context_->addresses).at(address);
    return {.kind = found.kind, .device_id = found.device_id};
  }

  Result<Region> allocate_device(std::uint64_t size_bytes, DeviceOptions options) override {
    CAIRN_TRY(check_device(options.device_id));
    const CudaMemoryRequest request{options.device_id, size_bytes};
    return options.by_descriptor ? allocate_cuda_vmm(context_, request)
                                 : allocate_cuda_device(context_, request);
  }
  // For every device; memory near one that is left out is near none.
  Result<Region> allocate_pinned(std::uint64_t size_bytes, PinnedOptions options) override {
    if (std::ranges::count(left_out_, options.device_id, &LeftOutDevice::id) > 0) {
      options.numa_aware = false;
      options.device_id = devices_.front().id;
    }
    CAIRN_TRY(check_device(options.device_id));
    return allocate_cuda_pinned(context_, {.memory = {options.device_id, size_bytes},
                                           .numa_aware = options.numa_aware,
                                           .place = options.place});
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
    if (std::ranges::count(devices_, device_id, &DeviceInfo::id) > 0) [[likely]]
      return {};
    const auto left_out = std::ranges::find(left_out_, device_id, &LeftOutDevice::id);
    if (left_out != left_out_.end()) return Error{ErrorCode::out_of_range, left_out->why};
    return Error{ErrorCode::out_of_range, "there is no device " + std::to_string(device_id) +
                                              "; the CUDA runtime has 0 to " +
                                              std::to_string(context_->devices.size() - 1)};
  }

  const std::shared_ptr<CudaContext> context_;
  const std::vector<LeftOutDevice> left_out_;
  std::vector<DeviceInfo> devices_;
  MemoryVisibility visibility_ = MemoryVisibility::explicit_dma;
};

// Lets two devices copy to each other without a stop in host memory. If it fails they copy with
// one.
void connect_peers(CudaContext& context) {
  for (CudaDevice* device : context.open_devices) {
    for (const CudaDevice* peer : context.open_devices) {
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
    std::vector<LeftOutDevice> left_out;
    for (int id = 0; id < count; ++id) {
      std::unique_ptr<CudaDevice>& device = context->devices.emplace_back();
      if (auto opened = CudaDevice::open(id, options.device_hang_timeout)) {
        device = std::move(*opened);
        context->open_devices.push_back(device.get());
      } else {
        left_out.push_back({.id = id, .why = std::move(opened).error().detail});
      }
    }
    if (context->open_devices.empty()) {
      return Error{ErrorCode::device_error, left_out.front().why};
    }
    connect_peers(*context);
    return std::unique_ptr<DeviceRuntime>(
        std::make_unique<CudaRuntime>(std::move(context), std::move(left_out)));
  } catch (const std::system_error& failure) {
    return Error{ErrorCode::unavailable,
                 std::string("no thread to poll CUDA events: ") + failure.what()};
  }
}

Result<std::unique_ptr<DeviceRuntime>> make_cuda_runtime() {
  return make_cuda_runtime(CudaRuntimeOptions{});
}

}  // namespace cairn
