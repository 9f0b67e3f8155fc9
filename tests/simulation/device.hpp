#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "memory/device_runtime.hpp"
#include "tests/simulation/queue.hpp"

namespace cairn::sim {

// Simulated devices: memory of the host runtime, and streams whose work is done when the queue says
// so. A copy may be done in two halves with other events between them.
class Device final : public DeviceRuntime {
 public:
  struct Options {
    MemoryVisibility visibility = MemoryVisibility::system;
    // One in this many copies is refused or breaks its stream halfway; 0: none.
    std::uint64_t fails_once_in = 0;
  };
  // Borrows the queue.
  Device(Queue& queue, Options options);
  ~Device() override;
  void set_fails_once_in(std::uint64_t copies) { options_.fails_once_in = copies; }
  std::uint64_t failures() const { return failures_; }
  // Loses the device and breaks every stream.
  void lose();

  std::string_view name() const override { return "host"; }
  std::span<const DeviceInfo> devices() const override { return real_->devices(); }
  MemoryVisibility visibility() const override { return options_.visibility; }
  std::optional<std::string> lost() const override { return lost_; }
  Result<Region> allocate_device(std::uint64_t size_bytes, DeviceOptions options) override;
  Result<Region> allocate_pinned(std::uint64_t size_bytes, PinnedOptions options) override;
  Result<Region> allocate_unified(int device_id, std::uint64_t size_bytes) override;
  Result<Region> import_memory(const ExportedMemory& memory, ImportOptions options) override;
  Result<std::unique_ptr<Stream>> create_stream(int device_id) override;

 private:
  friend class QueuedStream;
  // Whether the next copy fails.
  bool next_fails();

  Queue& queue_;
  Options options_;
  const std::unique_ptr<DeviceRuntime> real_;
  std::optional<std::string> lost_;
  std::uint64_t failures_ = 0;
};

}  // namespace cairn::sim
