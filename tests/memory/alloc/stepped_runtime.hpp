#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "memory/device_runtime.hpp"

namespace cairn::fakes {

// The progress of a stream. Its work is numbered: the n-th operation is done when `done` is n.
struct StreamSteps {
  std::uint64_t issued = 0;
  std::uint64_t done = 0;
};

// A runtime with one device. Its memory is only addresses, with no bytes behind them. Its streams
// advance when the test advances them or waits for them. Not thread-safe.
class SteppedRuntime final : public DeviceRuntime {
 public:
  explicit SteppedRuntime(std::uint64_t device_bytes) : book_(std::make_shared<Book>()) {
    book_->free_bytes = device_bytes;
  }

  // The allocated ranges, by address.
  struct Book {
    std::uint64_t free_bytes = 0;
    std::uint64_t live_bytes = 0;
    // Never reused, so that a test can tell a new segment from an old one.
    std::uintptr_t next_address = 1ull << 40;
    std::map<std::byte*, std::uint64_t> live;                // first byte, size
    std::vector<std::pair<std::byte*, std::uint64_t>> gone;  // freed, for the test to take
  };
  Book& book() { return *book_; }
  // REQUIRES: a stream of this runtime.
  static StreamSteps& steps(Stream& stream);

  std::string_view name() const override { return "stepped"; }
  std::span<const DeviceInfo> devices() const override { return {}; }
  MemoryVisibility visibility() const override { return MemoryVisibility::explicit_dma; }
  std::optional<std::string> lost() const override { return std::nullopt; }
  Result<Region> allocate_device(std::uint64_t size_bytes, DeviceOptions options) override;
  Result<Region> allocate_pinned(std::uint64_t size_bytes, PinnedOptions options) override;
  Result<Region> allocate_unified(int device_id, std::uint64_t size_bytes) override;
  Result<Region> import_memory(const ExportedMemory& memory, ImportOptions options) override;
  Result<std::unique_ptr<Stream>> create_stream(int device_id) override;

 private:
  Result<Region> allocate(StorageKind kind, std::uint64_t size_bytes);
  const std::shared_ptr<Book> book_;
};

}  // namespace cairn::fakes
