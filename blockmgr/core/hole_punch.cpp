#include "blockmgr/core/hole_punch.hpp"

#include <chrono>
#include <utility>

#include "blockmgr/core/cache_core.hpp"
#include "transport/io/slot_file.hpp"

namespace cairn {
namespace {

// A hole takes some 0.3 ms (ext4, of 300 KiB), in which nothing else is read.
constexpr std::size_t kHolesAtOnce = 16;
// Delay before slots are tried again after a failure.
constexpr std::chrono::seconds kAfterFailure{1};

}  // namespace

void HolePunch::go_on(CacheLock& locked) {
  SlotPool& pool = locked->store.pool(Tier::disk);
  if (!pool.wants_punch() || under_way_ || locked.now() < not_before_) return;
  auto slots = std::make_shared<std::vector<SlotTail>>();
  while (slots->size() < kHolesAtOnce && pool.wants_punch()) {
    const SlotNumber slot = pool.take_to_punch();
    if (slot == kNoSlot) break;
    slots->push_back({.slot = slot, .slots = pool.units_in(slot)});
  }
  if (slots->empty()) return;
  under_way_ = true;
  locked.after([core = locked.core().shared_from_this(), slots] {
    core->services->jobs.enter();
    core->services->scheduler.executor().post([core, slots] {
      punch(*core, slots);
      core->services->jobs.leave();
    });
  });
}

void HolePunch::punch(CacheCore& core, const Slots& slots) {
  Result<> done;
  for (const SlotTail& slot : *slots) {
    done = punch_tail(core.services->scheduler.disk(), core.slots(Tier::disk), slot);
    if (!done) break;
    core.slot_contents->set_pages(slot.slot, slot.slots, 0);
  }
  if (!done) {
    core.services->log.warning("cannot give pages of free slots back to the file system",
                               {{"cache", core.config.name}, {"detail", done.error().detail}});
  }
  CacheLock locked(core, LockUse::movement);
  locked->holes.ended(locked, *slots, !done);
}

void HolePunch::ended(CacheLock& locked, const std::vector<SlotTail>& slots, bool failed) {
  under_way_ = false;
  if (failed) not_before_ = locked.now() + kAfterFailure;
  for (const SlotTail& slot : slots) locked->store.unpin({Tier::disk, slot.slot});
}

}  // namespace cairn
