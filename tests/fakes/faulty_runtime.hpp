#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/mutex.hpp"
#include "memory/device_runtime.hpp"

namespace cairn::fakes {

// What can be made to fail, and is counted.
enum class Fault : std::uint8_t {
  allocate,       // any allocate_…() and import_memory() answer device_error
  create_stream,  // create_stream() answers device_error
  copy,           // copy() answers device_error, nothing is copied
  copy_later,  // copy() is accepted and copies half of its pieces; events recorded after it on its
               // stream, and on streams that wait for such an event, answer device_error
  record,      // record() answers device_error
  event,       // the event answers device_error once the work before it has ended
};
inline constexpr std::size_t kFaults = 6;

std::string_view to_string(Fault fault);

// A real runtime whose n-th operation of a kind fails:
//
//   for (std::uint64_t n = 1;; ++n) {
//     FaultyRuntime runtime(make_host_runtime({}).value());
//     runtime.fail_nth(Fault::copy, n);
//     … run, check that a failure is a failure …
//     if (runtime.failed() == 0) break;  // n is beyond the last operation: every one has failed
//     once
//   }
//
// Its streams and events work with each other only. Thread-safe as the interface says; the plan and
// the counts outlive the runtime's streams.
class FaultyRuntime : public DeviceRuntime {
 public:
  explicit FaultyRuntime(std::unique_ptr<DeviceRuntime> real);
  ~FaultyRuntime() override;

  // From now on the n-th (1 is the next) operation of that kind fails; 0: none. One plan a kind.
  void fail_nth(Fault fault, std::uint64_t n);
  // From now on lost() answers that; nothing else changes.
  void lose(std::string why);
  // From now on nobody is told of an event that is reached, until let_tell(). Who asks or waits is
  // answered all the same.
  void hold_telling();
  void let_tell();
  // Until so many are not told.
  void wait_for_held(std::size_t events);
  // Operations of the kind so far. `copy` and `copy_later` count the same calls, `record` and
  // `event` too.
  std::uint64_t count(Fault fault) const;
  // How many operations were made to fail.
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
