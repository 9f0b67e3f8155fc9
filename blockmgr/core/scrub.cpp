#include "blockmgr/core/scrub.hpp"

#include <algorithm>
#include <limits>

#include "blockmgr/core/cache_core.hpp"

namespace cairn {
namespace {

// Bytes read at a time: one group of a job, so that a transfer never waits longer than that.
constexpr std::uint64_t kStepBytes = 2ull << 20;
// Slots checked under one hold of the lock; most of them may be free.
constexpr std::uint32_t kSlotsALook = 4096;

}  // namespace

// Pins nothing, so a scrub never delays or refuses anyone. The generation shows if a slot holds
// another block by the time its check ends.
std::vector<Scrub::Slot> Scrub::take(CacheLock& locked) {
  CacheCore& core = locked.core();
  std::vector<Slot> slots;
  const auto most = std::max<std::uint64_t>(1, kStepBytes / core.block_bytes);
  const std::uint32_t look = std::min(kSlotsALook, core.slot_contents->num_slots());
  for (std::uint32_t i = 0; i < look && slots.size() < most; ++i) {
    const SlotRef at(Tier::disk, next_);
    const SlotRecord& slot = locked->store.record(at);
    if (slot.life == SlotLife::committed && !slot.gone) {
      const KvGroupNumber kv_group = locked->store.kv_group(at);
      // A job reads blocks of one shape.
      if (!slots.empty() && slots.front().kv_group != kv_group) break;
      if (!core.services->disk_scrubs.take(core.block_bytes, locked.now())) break;
      slots.push_back({at, slot.generation, kv_group});
    }
    if (++next_ >= core.slot_contents->num_slots()) {
      next_ = 0;
      ++stats_.passes;
    }
  }
  return slots;
}

void Scrub::go_on(CacheCore& core) {
  if (!core.slot_contents || core.options().disk.scrub_bytes_per_s == 0) return;
  if (core.services->scheduler.stats().queued > 0) return;
  CacheLock locked(core, LockUse::upkeep);
  if (!locked->dropped) locked->scrub.begin(locked);
}

void Scrub::begin(CacheLock& locked) {
  if (under_way_) return;
  std::vector<Slot> slots = take(locked);
  if (slots.empty()) return;
  under_way_ = true;
  locked.after([self = locked.core().shared_from_this(), slots = std::move(slots)]() mutable {
    TransferJob job;
    job.source = job.destination = &self->layout(Tier::disk, slots.front().kv_group);
    job.operation = JobOperation::check;
    // After all other work.
    job.urgency = Urgency::background;
    job.priority = std::numeric_limits<std::int32_t>::min();
    for (const Slot& slot : slots) job.pairs.push_back({slot.at.slot(), slot.at.slot()});
    self->submit(std::move(job),
                 [self, slots = std::move(slots)](const JobOutcome& outcome) {
                   CacheLock ending(*self, LockUse::upkeep);
                   ending->scrub.ended(ending, slots, outcome);
                 },
                 {});
  });
}

void Scrub::ended(CacheLock& locked, const std::vector<Slot>& slots, const JobOutcome& outcome) {
  const CacheCore& core = locked.core();
  under_way_ = false;
  // A job that did not run, or was refused, has read nothing.
  if (outcome.state == JobState::cancelled) return;
  const auto refused = std::ranges::count_if(outcome.failures, [](const BlockFailure& failure) {
    return failure.error.code == ErrorCode::queue_full;
  });
  const std::uint64_t read = slots.size() - static_cast<std::uint64_t>(refused);
  stats_.blocks += read;
  stats_.bytes += read * core.block_bytes;
  for (const BlockFailure& failure : outcome.failures) {
    const auto& [at, generation, kv_group] = slots[failure.index];
    const SlotRecord& slot = locked->store.record(at);
    const bool same =
        slot.generation == generation && slot.life == SlotLife::committed && !slot.gone;
    if (!same || locked->dropped || !accuses_source(Tier::disk, failure.error.code)) continue;
    ++stats_.wrong;
    locked->transfers.drop_unreadable(locked, at, generation, failure.error);
    locked.after([services = core.services, cache = core.config.name, error = failure.error] {
      services->log.warning("a block on disk is lost",
                            {{"cache", cache}, {"detail", error.detail}});
    });
  }
}

}  // namespace cairn
