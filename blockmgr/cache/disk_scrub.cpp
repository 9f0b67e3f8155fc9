// Bytes on disk go wrong while nobody reads them: they are read now and then.
#include <algorithm>
#include <limits>

#include "blockmgr/cache/cache_core.hpp"

namespace cairn {
namespace {

// What is read at a time: one group of a job, so that a movement never waits for longer than that.
constexpr std::uint64_t kStepBytes = 2ull << 20;
// Slots that are looked at under one hold of the lock, most of which may be free.
constexpr std::uint32_t kSlotsALook = 4096;

}  // namespace

// Nothing is pinned: nobody is refused or made to wait for the sake of a scrub. A slot that became
// another block's meanwhile is known by its generation.
std::vector<CacheCore::ScrubbedSlot> CacheCore::take_for_scrub(const Section& section) {
  std::vector<ScrubbedSlot> slots;
  const auto most = std::max<std::uint64_t>(1, kStepBytes / block_bytes);
  const std::uint32_t look = std::min(kSlotsALook, disk_slots->num_slots());
  for (std::uint32_t i = 0; i < look && slots.size() < most; ++i) {
    const SlotRef at(Tier::disk, next_scrubbed);
    const SlotRecord& slot = store.record(at);
    if (slot.life == SlotLife::committed && !slot.gone) {
      if (!services->disk_scrubs.take(block_bytes, section.now())) break;
      slots.push_back({at, slot.generation});
    }
    if (++next_scrubbed >= disk_slots->num_slots()) {
      next_scrubbed = 0;
      ++disk_scrub.passes;
    }
  }
  return slots;
}

void CacheCore::scrub() {
  if (!disk_slots || options().disk.scrub_bytes_per_s == 0) return;
  if (services->engine.stats().queued > 0) return;
  Section section(*this);
  if (dropped || scrubbing) return;
  std::vector<ScrubbedSlot> slots = take_for_scrub(section);
  if (slots.empty()) return;
  scrubbing = true;
  section.after([self = shared_from_this(), slots = std::move(slots)]() mutable {
    TransferJob job;
    job.source = job.destination = &self->layout(Tier::disk);
    job.operation = JobOperation::check;
    // Behind everything else.
    job.urgency = Urgency::background;
    job.priority = std::numeric_limits<std::int32_t>::min();
    for (const ScrubbedSlot& slot : slots) job.pairs.push_back({slot.at.slot(), slot.at.slot()});
    self->submit(
        std::move(job),
        [self, slots = std::move(slots)](JobOutcome outcome) { self->scrubbed(slots, outcome); },
        {});
  });
}

void CacheCore::scrubbed(const std::vector<ScrubbedSlot>& slots, const JobOutcome& outcome) {
  Section section(*this);
  scrubbing = false;
  // One that never ran, or was refused, has read nothing.
  if (outcome.state == JobState::cancelled) return;
  const auto refused = std::ranges::count_if(outcome.failures, [](const BlockFailure& failure) {
    return failure.error.code == ErrorCode::queue_full;
  });
  const std::uint64_t read = slots.size() - static_cast<std::uint64_t>(refused);
  disk_scrub.blocks += read;
  disk_scrub.bytes += read * block_bytes;
  for (const BlockFailure& failure : outcome.failures) {
    const auto& [at, generation] = slots[failure.index];
    const SlotRecord& slot = store.record(at);
    const bool same =
        slot.generation == generation && slot.life == SlotLife::committed && !slot.gone;
    if (!same || dropped || !accuses_source(Tier::disk, failure.error.code)) continue;
    ++disk_scrub.wrong;
    drop_unreadable(at, generation, failure.error);
    section.after([services = services, cache = config.name, error = failure.error] {
      services->log.warning("a block on disk is lost",
                            {{"cache", cache}, {"detail", error.detail}});
    });
  }
}

}  // namespace cairn
