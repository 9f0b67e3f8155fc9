#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/mutex.hpp"
#include "memory/device_runtime.hpp"

namespace cairn::fakes {

// The operations that can fail and are counted.
enum class Fault : std::uint8_t {
  allocate,       // any allocate_…() and import_memory() return device_error
  create_stream,  // create_stream() returns device_error
  copy,           // copy() returns device_error and copies nothing
  copy_later,  // copy() is accepted and copies half of its pieces; events recorded after it on its
               // stream, and on streams that wait for such an event, return device_error
  record,      // record() returns device_error
  event,       // the event returns device_error once the work before it has ended
};
inline constexpr std::size_t kFaults = 6;

std::string_view to_string(Fault fault);

// A real runtime whose n-th operation of a kind fails:
//
//   for (std::uint64_t n = 1;; ++n) {
//     FaultyRuntime runtime(make_host_runtime({}).value());
//     runtime.fail_nth(Fault::copy, n);
//     … run, check that a failure is a failure …
//     if (runtime.failed() == 0) break;  // each operation has failed once
//   }
//
// Its streams and events only work with each other. Thread-safe like the interface. The plan and
// the counts outlive the runtime's streams.
class FaultyRuntime : public DeviceRuntime {
 public:
  explicit FaultyRuntime(std::unique_ptr<DeviceRuntime> real);
  ~FaultyRuntime() override;

  // The n-th operation of that kind from now on fails (1: the next; 0: none). One plan per kind.
  void fail_nth(Fault fault, std::uint64_t n);
  // From now on lost() returns that; nothing else changes.
  void lose(std::string why);
  // Holds all callbacks of reached events until release_callbacks(). ready() and wait() work as
  // before.
  void hold_callbacks();
  void release_callbacks();
  // Waits until that many callbacks are held.
  void wait_for_held(std::size_t events);
  // The operations of the kind so far. `copy` and `copy_later` count the same calls, and so do
  // `record` and `event`.
  std::uint64_t count(Fault fault) const;
  // How many operations have failed by the plan.
  std::uint64_t failed() const;

  std::string_view name() const override;
  std::span<const DeviceInfo> devices() const override;
  MemoryVisibility visibility() const override;
  std::optional<std::string> lost() const override;
  Result<Region> allocate_device(std::uint64_t size_bytes, DeviceOptions options) override;
  Result<Region> allocate_pinned(std::uint64_t size_bytes, PinnedOptions options) override;
  Result<Region> allocate_unified(int device_id, std::uint64_t size_bytes) override;
  Result<Region> import_memory(const ExportedMemory& memory, ImportOptions options) override;
  Result<std::unique_ptr<Stream>> create_stream(int device_id) override;

  class Plan;

 private:
  const std::unique_ptr<DeviceRuntime> real_;
  const std::shared_ptr<Plan> plan_;
  mutable Mutex mutex_;
  std::optional<std::string> lost_ CAIRN_GUARDED_BY(mutex_);
};

}  // namespace cairn::fakes
