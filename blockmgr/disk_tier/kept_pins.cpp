#include "blockmgr/disk_tier/kept_pins.hpp"

#include <vector>

#include "blockmgr/core/cache_core.hpp"

namespace cairn {
namespace {

// Keys copied under one hold of the lock: some 60 ns each.
constexpr std::size_t kKeyStep = 128;

SideFile file_of(const CacheCore& core) {
  return {core.disk_files.front(), core.slot_contents->file_id()};
}

}  // namespace

Result<> keep_pins(CacheCore& core) {
  if (!core.slot_contents) return {};
  std::vector<PinRecord> records;
  {
    CacheLock locked(core, LockUse::upkeep);
    if (locked->dropped) return {};
    for (auto number = locked->pins.next(0); number; number = locked->pins.next(*number + 1)) {
      auto record = locked->pins.record_of(locked, *number);
      std::size_t first = 0;
      while (record && locked->pins.add_keys(locked, *number, {first, kKeyStep}, record->keys)) {
        first += kKeyStep;
        locked.yield();
      }
      if (record && !record->keys.empty()) records.push_back(std::move(*record));
      locked.yield();
      if (locked->dropped) return {};
    }
  }
  return write_pins(file_of(core), records);
}

void take_pins(CacheCore& core) {
  const auto records = read_pins(file_of(core));
  if (records) {
    CacheLock locked(core, LockUse::upkeep);
    for (const PinRecord& record : *records) locked->pins.restore(locked, record);
    return;
  }
  if (records.error().code == ErrorCode::not_found) return;
  core.services->log.warning("ignored the pins of an earlier run",
                             {{"cache", core.config.name}, {"detail", records.error().detail}});
}

}  // namespace cairn
