#include "blockmgr/core/resizing.hpp"

#include <algorithm>
#include <atomic>
#include <map>
#include <utility>

#include "blockmgr/core/cache_core.hpp"

namespace cairn {
namespace {

// Under one hold of the lock: units evicted, and slots checked for copies that must move.
constexpr std::uint32_t kEvictStep = 256;
constexpr std::uint32_t kLookStep = 1024;
// Limits for the copies in progress. Each copy from disk takes a staging block, which clients use
// too.
constexpr std::uint64_t kBytesAtOnce = 32ull << 20;
constexpr std::uint64_t kMostAtOnce = 256;
constexpr std::uint64_t kDiskAtOnce = 8;
// Delay before a failed copy is tried again.
constexpr std::chrono::milliseconds kAfterFailure{200};

std::uint64_t most_at_once(const CacheCore& core, Tier tier) {
  if (tier == Tier::disk) return kDiskAtOnce;
  return std::clamp<std::uint64_t>(kBytesAtOnce / core.block_bytes, 1, kMostAtOnce);
}

}  // namespace

bool Resizing::begin() { return !std::exchange(under_way_, true); }

void Resizing::go_on(CacheLock& locked) {
  for (Tier tier : kTiers) {
    const SlotPool& slots = locked->store.pool(tier);
    if (slots.beyond_count() == 0 && slots.excess_units() == 0) continue;
    // A copy in progress uses two slots. So does a copy whose old slot is held by leases.
    const std::uint32_t staying = slots.units_in_use() - locked->store.leaving_units(tier) -
                                  locked->store.superseded_units(tier) -
                                  tiers_[index_of(tier)].under_way;
    const std::uint32_t beyond = staying > slots.limit() ? staying - slots.limit() : 0;
    const std::uint32_t excess = std::min(std::max(beyond, slots.excess_units()), kEvictStep);
    if (excess > 0) {
      // A client waits for the resize, and thousands of blocks may have to leave.
      const SlotQueue::Reclaim step{.units = excess, .may_go_remote = false};
      const bool any = locked->slots.reclaim(locked, tier, step) > 0;
      if (!any && !locked.step_is_over()) cut_chains(locked, tier, excess);
    } else {
      // Only now: a block that is being copied cannot be evicted, so more valuable blocks would be.
      relocate_some(locked, tier);
    }
  }
}

// Eviction keeps a block if the rest of its prefix lies in other tiers. But now it has no room
// here.
void Resizing::cut_chains(CacheLock& locked, Tier tier, std::uint32_t count) {
  OneTier& state = tiers_[index_of(tier)];
  if (locked->store.leaving_units(tier) > 0 || locked.now() < state.no_cut_before) return;
  if (locked->store.cut_chains(tier, count) == 0) {
    state.no_cut_before = locked.now() + kAfterFailure;
  }
}

void Resizing::relocate_some(CacheLock& locked, Tier tier) {
  OneTier& state = tiers_[index_of(tier)];
  const SlotPool& slots = locked->store.pool(tier);
  if (state.under_way > 0 || locked.now() < state.not_before) return;
  const std::uint64_t most = most_at_once(locked.core(), tier);
  auto items = std::make_shared<std::vector<Relocated>>();
  const std::uint32_t look = std::min(kLookStep, slots.end() - slots.limit());
  for (std::uint32_t i = 0; i < look && items->size() < most && slots.free_count() > 0; ++i) {
    if (state.next < slots.limit() || state.next >= slots.end()) state.next = slots.limit();
    const SlotRef from(tier, state.next++);
    const SlotRecord& slot = locked->store.record(from);
    // A transfer depends on its source's slot. A reader could keep the old slot, but its pin looks
    // the same.
    if (slot.life != SlotLife::committed || slot.gone || slot.pins != slot.leases) continue;
    if (slots.free_for(locked->store.kv_group(from)) > 0) {
      items->push_back(taken(locked, from));
    } else if (items->empty()) {
      // The free room lies in slabs of other sizes.
      vacate(locked, tier, {.kv_group = locked->store.kv_group(from), .units = 1});
      if (state.under_way > 0) return;
      locked->slots.reclaim(locked, tier,
                            {.units = locked->store.units_in(from), .may_go_remote = false});
      return;
    }
  }
  begin_copies(locked, tier, items);
}

Resizing::Relocated Resizing::taken(CacheLock& locked, SlotRef from) {
  const SlotRecord& slot = locked->store.record(from);
  const KvGroupNumber kv_group = locked->store.kv_group(from);
  locked->store.pin_in_place(from);
  const SlotRef to =
      locked->store.take(from.tier(), {.kv_group = kv_group, .priority = slot.priority});
  Relocated item{.from = from, .to = to, .kv_group = kv_group, .generation = slot.generation};
  if (from.tier() == Tier::disk) {
    item.header = header_of_copy(locked, {.source = from, .destination = to});
  }
  return item;
}

void Resizing::vacate(CacheLock& locked, Tier tier, const Room& wanted) {
  // A power cut before the next checkpoint would find the moved block at its old place, under the
  // bytes of another.
  if (tier == Tier::disk) return;
  OneTier& state = tiers_[index_of(tier)];
  SlotPool& slots = locked->store.pool(tier);
  if (!slots.has_slabs() || state.under_way > 0 || locked.now() < state.not_before) return;
  auto items = std::make_shared<std::vector<Relocated>>();
  const std::uint64_t most = most_at_once(locked.core(), tier);
  while (state.vacating_units < wanted.units && items->size() < most) {
    const auto slab = slots.begin_vacating(wanted.kv_group);
    if (!slab) break;
    state.vacating.push_back(slab->slab);
    state.vacating_units += slots.slab_units();
    for (const SlotNumber slot : slab->slots) items->push_back(taken(locked, {tier, slot}));
  }
  begin_copies(locked, tier, items);
}

void Resizing::begin_copies(CacheLock& locked, Tier tier, const Relocations& items) {
  if (items->empty()) return;
  std::uint32_t& under_way = tiers_[index_of(tier)].under_way;
  for (const Relocated& item : *items) under_way += locked->store.units_in(item.from);
  locked.after([core = locked.core().shared_from_this(), tier, items] {
    if (tier == Tier::disk) {
      copy_on_disk(*core, items);
    } else {
      copy_in_memory(*core, tier, items);
    }
  });
}

// A job copies blocks of one KV group.
void Resizing::copy_in_memory(CacheCore& core, Tier tier, const Relocations& items) {
  std::map<KvGroupNumber, std::vector<std::size_t>> by_group;
  for (std::size_t i = 0; i < items->size(); ++i) by_group[(*items)[i].kv_group].push_back(i);
  auto left = std::make_shared<std::atomic<std::size_t>>(by_group.size());
  for (auto& [kv_group, numbers] : by_group) {
    TransferJob job;
    job.source = job.destination = &core.layout(tier, kv_group);
    job.urgency = Urgency::background;
    for (const std::size_t i : numbers) {
      job.pairs.push_back({(*items)[i].from.slot(), (*items)[i].to.slot()});
    }
    core.submit(
        std::move(job),
        [&core, tier, items, left, numbers = std::move(numbers)](const JobOutcome& outcome) {
          const Error cancelled{ErrorCode::cancelled, "the server is shutting down"};
          if (outcome.state == JobState::cancelled) {
            for (const std::size_t i : numbers) (*items)[i].error = cancelled;
          }
          for (const BlockFailure& failure : outcome.failures) {
            (*items)[numbers[failure.index]].error = failure.error;
          }
          if (--*left == 0) copies_ended(core, tier, items);
        },
        {});
  }
}

namespace {

std::optional<Error> error_of(const JobOutcome& outcome) {
  if (outcome.state == JobState::done) return std::nullopt;
  if (!outcome.failures.empty()) return outcome.failures.front().error;
  return Error{ErrorCode::cancelled, "the server is shutting down"};
}

}  // namespace

// Copies through memory, so that the bytes are compared with their checksum before they are
// written.
void Resizing::copy_on_disk(CacheCore& core, const Relocations& items) {
  auto left = std::make_shared<std::atomic<std::size_t>>(items->size());
  for (Relocated& item : *items) {
    const auto ended = [self = core.shared_from_this(), items, left,
                        &item](std::optional<Error> error) {
      item.error = std::move(error);
      if (--*left == 0) copies_ended(*self, Tier::disk, items);
    };
    core.staging.acquire(item.kv_group, [self = core.shared_from_this(), &item,
                                         ended](Result<CanonicalStaging::Block> block) {
      if (!block) return ended(block.error());
      auto held = std::make_shared<CanonicalStaging::Block>(std::move(*block));
      TransferJob read;
      read.source = &self->layout(Tier::disk, item.kv_group);
      read.destination = &held->layout();
      read.urgency = Urgency::background;
      read.pairs.push_back({item.from.slot(), 0});
      self->submit(std::move(read),
                   [self, &item, ended, held](const JobOutcome& outcome) {
                     if (auto error = error_of(outcome)) {
                       item.unreadable = accuses_source(Tier::disk, error->code);
                       return ended(std::move(error));
                     }
                     TransferJob write;
                     write.source = &held->layout();
                     write.destination = &self->layout(Tier::disk, item.kv_group);
                     write.urgency = Urgency::background;
                     write.pairs.push_back({0, item.to.slot()});
                     write.headers.push_back(item.header);
                     self->submit(
                         std::move(write),
                         [ended, held](const JobOutcome& written) { ended(error_of(written)); },
                         {});
                   },
                   {});
    });
  }
}

void Resizing::copies_ended(CacheCore& core, Tier tier, const Relocations& items) {
  if (tier == Tier::disk) core.options().failpoint("resize.written");
  CacheLock locked(core, LockUse::movement);
  locked->sizes.relocated(locked, tier, *items);
  if (tier == Tier::disk) core.options().failpoint("resize.noted");
}

void Resizing::relocated(CacheLock& locked, Tier tier, const std::vector<Relocated>& items) {
  OneTier& state = tiers_[index_of(tier)];
  state.under_way = 0;
  for (const Relocated& item : items) {
    const SlotRecord& slot = locked->store.record(item.from);
    if (item.error) {
      state.not_before = locked.now() + kAfterFailure;
      if (item.unreadable)
        locked->transfers.drop_unreadable(locked, item.from, item.generation, *item.error);
    }
    // If the copy is gone, or is in use by others now, a later step looks at it again.
    const bool stays = item.error || locked->dropped || slot.gone || slot.pins != slot.leases + 1;
    if (!stays) locked->store.relocate({.from = item.from, .to = item.to});
    locked->store.unpin_in_place(item.from);
    if (stays) {
      locked->store.unpin(item.to);
    } else {
      locked->store.unpin_in_place(item.to);
    }
  }
  if (state.vacating.empty()) return;
  for (const SlabNumber slab : state.vacating) locked->store.pool(tier).end_vacating(slab);
  state.vacating.clear();
  state.vacating_units = 0;
  locked.serve_again();
}

}  // namespace cairn
