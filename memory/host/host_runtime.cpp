#include "memory/host/host_runtime.hpp"

#include <string>
#include <vector>

#include "memory/device_runtime.hpp"
#include "memory/exported_memory.hpp"
#include "memory/host/host_memory.hpp"
#include "memory/host/host_platform.hpp"
#include "memory/host/host_stream.hpp"

namespace cairn {
namespace {

// The most that one program addresses in practice; far above any machine's number of accelerators.
constexpr std::uint32_t kMaxHostDevices = 64;

class HostRuntime final : public DeviceRuntime {
 public:
  explicit HostRuntime(HostRuntimeOptions options)
      : visibility_(host_visibility(read_host_memory_facts())),
        host_budget_(
            std::make_shared<MemoryBudget>("the machine's memory", machine_memory_bytes())) {
    const std::uint64_t device_bytes =
        options.device_bytes == 0 ? machine_memory_bytes() : options.device_bytes;
    for (std::uint32_t i = 0; i < options.devices; ++i) {
      const int id = static_cast<int>(i);
      const std::string name = "host device " + std::to_string(id);
      devices_.push_back(
          {id, name, device_bytes, numa_node_of_device(id), "host-" + std::to_string(id)});
      device_budgets_.push_back(std::make_shared<MemoryBudget>(name, device_bytes));
    }
  }

  std::string_view name() const override { return "host"; }
  std::span<const DeviceInfo> devices() const override { return devices_; }
  MemoryVisibility visibility() const override { return visibility_; }
  std::optional<std::string> lost() const override { return std::nullopt; }  // memory stays

  Result<Region> allocate_device(std::uint64_t size_bytes, DeviceOptions options) override {
    CAIRN_TRY(check_device(options.device_id));
    const auto index = static_cast<std::size_t>(options.device_id);
    return map_shared_memory({.kind = StorageKind::device,
                              .device_id = options.device_id,
                              .size_bytes = size_bytes,
                              .numa_node = devices_[index].numa_node},
                             device_budgets_[index]);
  }

  Result<Region> allocate_pinned(std::uint64_t size_bytes, PinnedOptions options) override {
    CAIRN_TRY(check_device(options.device_id));
    const auto index = static_cast<std::size_t>(options.device_id);
    return map_shared_memory({.kind = StorageKind::pinned,
                              .size_bytes = size_bytes,
                              .numa_node = options.numa_aware ? devices_[index].numa_node : -1,
                              .place = options.place},
                             host_budget_);
  }

  Result<Region> allocate_unified(int device_id, std::uint64_t size_bytes) override {
    CAIRN_TRY(check_device(device_id));
    return map_shared_memory(
        {.kind = StorageKind::unified, .device_id = device_id, .size_bytes = size_bytes},
        host_budget_);
  }

  Result<Region> import_memory(const ExportedMemory& memory, ImportOptions options) override {
    CAIRN_TRY(check_device(options.device_id));
    if (memory.kind == ExportedMemory::Kind::cuda_ipc ||
        memory.kind == ExportedMemory::Kind::cuda_vmm_fd) {
      return Error{ErrorCode::impossible, "the host runtime has no memory of a GPU to import"};
    }
    return map_exported_memory(
        {.memory = memory,
         .kind = options.kind,
         .device_id = options.kind == StorageKind::device ? options.device_id : -1});
  }

  Result<std::unique_ptr<Stream>> create_stream(int device_id) override {
    CAIRN_TRY(check_device(device_id));
    return make_host_stream(static_cast<int>(devices_.size()));
  }

 private:
  Result<> check_device(int device_id) const {
    if (device_id >= 0 && static_cast<std::size_t>(device_id) < devices_.size()) return {};
    return Error{ErrorCode::out_of_range, "there is no device " + std::to_string(device_id) +
                                              "; the host runtime has 0 to " +
                                              std::to_string(devices_.size() - 1)};
  }

  const MemoryVisibility visibility_;
  std::vector<DeviceInfo> devices_;
  std::vector<std::shared_ptr<MemoryBudget>> device_budgets_;
  const std::shared_ptr<MemoryBudget> host_budget_;  // pinned and unified
};

}  // namespace

Result<std::unique_ptr<DeviceRuntime>> make_host_runtime(HostRuntimeOptions options) {
  if (options.devices < 1 || options.devices > kMaxHostDevices) {
    return Error{ErrorCode::out_of_range, std::to_string(options.devices) +
                                              " host devices: there are 1 to " +
                                              std::to_string(kMaxHostDevices)};
  }
  return std::unique_ptr<DeviceRuntime>(std::make_unique<HostRuntime>(options));
}

}  // namespace cairn
