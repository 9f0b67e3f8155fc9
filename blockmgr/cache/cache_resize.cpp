// Other settings and sizes of a cache that is used.
//
// A tier that grows has more slots at once. One that shrinks has a limit below which slots are
// handed out; from there on every section does a part of the rest (settle_sizes): what would be
// evicted next goes until all that stays fits below the limit, and copies that lie beyond it are
// copied below. A copy that leases hold is copied as well: it is found in its new slot, and the old
// one goes with the last lease that names it. Slots beyond the limit that come free are gone; with
// the last of them their memory goes back, and their part of the files.
//
// A crash leaves what was or what is asked for: the files grow before the description of the cache
// says so, and are cut only after it does. In between a copy may lie in two slots, with the same
// bytes.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <new>
#include <string>
#include <thread>

#include "blockmgr/cache/cache_core.hpp"
#include "blockmgr/cache/disk_tier.hpp"
#include "blockmgr/index/config_check.hpp"
#include "layouts/builder.hpp"
#include "transport/io/slot_file.hpp"

namespace cairn {
namespace {

// How long a change waits for blocks to move. What leases hold longer goes after it.
constexpr std::chrono::seconds kShrinkPatience{10};
constexpr std::chrono::milliseconds kLook{2};
// Looks after which it is asked whether anything can still move.
constexpr int kLooksAWhile = 25;
// Every configuration and layout that there was is kept for those who look at it: 10 MB of them.
constexpr std::uint32_t kMaxChanges = 16'384;
// What tick() gives back takes that long at most.
constexpr std::chrono::seconds kChangePatience{2};
// Under one hold of the lock: copies evicted, and slots looked at for copies that must move.
constexpr std::uint32_t kEvictStep = 256;
constexpr std::uint32_t kLookStep = 1024;
// Copies under way at a time. Each from disk takes a staging block, which clients share.
constexpr std::uint64_t kBytesAtOnce = 32ull << 20;
constexpr std::uint64_t kMostAtOnce = 256;
constexpr std::uint64_t kDiskAtOnce = 8;
// Until a copy that failed is tried again.
constexpr std::chrono::milliseconds kAfterFailure{200};

std::uint32_t size_in(const CacheConfig& config, Tier tier) {
  const auto& wanted = config.tiers[index_of(tier)];
  return wanted ? wanted->num_blocks : 0;
}

}  // namespace

Result<> CacheCore::begin_change() {
  const auto deadline = std::chrono::steady_clock::now() + kChangePatience;
  while (true) {
    {
      MutexLock lock(mutex);
      CAIRN_TRY(check_usable());
      if (changes == kMaxChanges) {
        return Error{ErrorCode::state_conflict,
                     "cache " + config.name + " has been changed " + std::to_string(changes) +
                         " times, and may be again after the next start of the server"};
      }
      if (!std::exchange(changing, true)) {
        ++changes;
        return {};
      }
    }
    if (std::chrono::steady_clock::now() >= deadline) {
      return Error{ErrorCode::state_conflict,
                   "cache " + config.name + " is being changed by another request"};
    }
    std::this_thread::sleep_for(kLook);
  }
}

void CacheCore::end_change() {
  MutexLock lock(mutex);
  changing = false;
}

Result<> CacheCore::check_change(const CacheConfig& before, const CacheConfig& wanted) {
  CAIRN_TRY(check_config(wanted, options()));
  Section section(*this);
  CAIRN_TRY(check_usable());
  end_overdue(section);
  for (Tier tier : kTiers) {
    const std::uint32_t size = size_in(wanted, tier);
    if (size == size_in(before, tier)) continue;
    const std::string name = "tiers." + std::string(to_string(tier)) + ".num_blocks is " +
                             std::to_string(size) + "; the tier ";
    if (mapped[index_of(tier)]) {
      return Error{ErrorCode::state_conflict,
                   name + "is imported or exported: other processes know its memory as it is"};
    }
    if (const std::uint32_t held = store.pool(tier).leased_count(); held > size) {
      return Error{ErrorCode::leased,
                   name + "has " + std::to_string(held) + " blocks that leases hold"};
    }
  }
  return {};
}

Result<> CacheCore::change(const CacheChange& change, const Cache::Remember& remember) {
  CAIRN_TRY(begin_change());
  struct Ending {
    ~Ending() { core.end_change(); }
    CacheCore& core;
  } const ending{*this};
  const CacheConfig before = *settings;
  auto after = changed(before, change);
  if (!after) return std::move(after).error();
  const CacheConfig& wanted = *after;
  CAIRN_TRY(check_change(before, wanted));
  CacheConfig grown = wanted;
  std::vector<Tier> shrinking;
  for (Tier tier : kTiers) {
    if (size_in(wanted, tier) >= size_in(before, tier)) continue;
    shrinking.push_back(tier);
    grown.tiers[index_of(tier)]->num_blocks = size_in(before, tier);
  }
  if (!(grown == before)) CAIRN_TRY(grow(before, grown, remember));
  if (!shrinking.empty()) CAIRN_TRY(shrink({grown, wanted}, shrinking, remember));
  return {};
}

Result<> CacheCore::grow(const CacheConfig& before, const CacheConfig& grown,
                         const Cache::Remember& remember) {
  std::array<std::optional<Growth>, kNumTiers> growths;
  // Files that have grown go back where the rest fails; memory does so by itself.
  const auto undo = [&](Error error) {
    if (const auto& disk = growths[index_of(Tier::disk)]; disk && disk->layout) {
      static_cast<void>(resize_slot_file(layout(Tier::disk), size_in(before, Tier::disk)));
    }
    return error;
  };
  for (Tier tier : kTiers) {
    if (size_in(grown, tier) == size_in(before, tier)) continue;
    auto growth = make_room(tier, size_in(grown, tier));
    if (!growth) return undo(std::move(growth).error());
    growths[index_of(tier)] = std::move(*growth);
  }
  options().reached("resize.grown");
  if (auto kept = remember(grown); !kept) return undo(std::move(kept).error());
  options().reached("resize.remembered");
  const auto take = [&]() -> Result<> {
    Section section(*this);
    CAIRN_TRY(check_usable());
    try {
      for (Tier tier : kTiers) {
        auto& growth = growths[index_of(tier)];
        if (growth) take_room({tier, size_in(grown, tier)}, std::move(*growth));
      }
      take_settings(grown);
    } catch (const std::bad_alloc&) {
      return Error{ErrorCode::no_capacity, "there is no memory for the cache's index"};
    }
    return {};
  };
  if (auto taken = take(); !taken) {
    static_cast<void>(remember(before));
    return taken;
  }
  if (growths[index_of(Tier::disk)]) label_files(size_in(grown, Tier::disk));
  return {};
}

Result<CacheCore::Growth> CacheCore::make_room(Tier tier, std::uint32_t num_blocks) {
  TierSpace& space = *spaces[index_of(tier)];
  Growth growth;
  const std::uint32_t room = space.room();
  if (tier == Tier::disk) {
    if (num_blocks <= room) return growth;
    auto longer = resize_slot_file(space.layout(), num_blocks);
    if (!longer) return std::move(longer).error();
    growth.layout.emplace(std::move(*longer));
    return growth;
  }
  {
    // Slots beyond the end that are in use still were not given back.
    MutexLock lock(mutex);
    if (store.pool(tier).beyond_count() > 0) num_blocks = std::max(num_blocks, room);
  }
  CAIRN_TRY(space.keep_below(std::min(num_blocks, room)));
  if (num_blocks <= room) return growth;
  if (!space.may_have_more_parts()) {
    return Error{ErrorCode::state_conflict,
                 "tiers." + std::string(to_string(tier)) + " lies in " +
                     std::to_string(TierSpace::kMaxParts) +
                     " parts, one each time that it grew, and has no more; made anew it is one"};
  }
  const TierConfig& made = *config.tiers[index_of(tier)];
  LayoutConfig shape = tier_shape(config, tier);
  shape.num_blocks = num_blocks - room;
  auto shaped = LayoutBuilder().config(shape);
  auto placed = made.layout == LayoutKind::layer_separate
                    ? std::move(shaped).layer_separate(made.block_dim)
                    : std::move(shaped).fully_contiguous();
  auto more = std::move(placed)
                  .allocate_pinned(services->runtime,
                                   {.numa_aware = made.numa_aware, .device_id = made.device_id})
                  .build();
  if (!more) return std::move(more).error();
  if (disk_slots) growth.prepared = prepare_for_disk(*more, config.name, *services);
  growth.layout.emplace(std::move(*more));
  return growth;
}

void CacheCore::take_room(TierSize size, Growth growth) {
  TierSpace& space = *spaces[index_of(size.tier)];
  if (growth.layout) {
    if (size.tier == Tier::disk) {
      disk_slots->grow(size.num_blocks);
      space.set_files(std::move(*growth.layout));
    } else {
      space.add(std::move(*growth.layout), std::move(growth.prepared));
    }
  }
  store.resize(size.tier, size.num_blocks);
}

void CacheCore::take_settings(const CacheConfig& wanted) {
  if (wanted.offload != settings->offload) {
    store.set_offload_on_evict(wanted.offload == OffloadMode::on_evict);
  }
  for (Tier tier : kTiers) {
    auto& gauge = gauges[index_of(tier)];
    if (gauge) gauge->set(pressure_of(wanted, tier, options()), size_in(wanted, tier));
  }
  settings.set(wanted);
}

void CacheCore::label_files(std::uint32_t num_blocks) {
  // Files that say less than the cache's description are set right by the next start.
  const auto labelled = label_slot_file(disk_files, layout(Tier::disk), num_blocks);
  if (labelled) return;
  services->log.warning("a slot file does not say how many slots it has",
                        {{"cache", config.name}, {"detail", labelled.error().detail}});
}

Result<> CacheCore::shrink(const Sizes& sizes, const std::vector<Tier>& tiers,
                           const Cache::Remember& remember) {
  const auto set_limits = [&](const CacheConfig& limits) {
    Section section(*this);
    for (Tier tier : tiers) {
      store.resize(tier, size_in(limits, tier));
      relocating[index_of(tier)].trim_due = true;
      gauges[index_of(tier)]->set(pressure_of(limits, tier, options()), size_in(limits, tier));
    }
  };
  set_limits(sizes.after);
  for (Tier tier : tiers) wait_until_shrunk(tier);
  const auto keep = [&]() -> Result<> {
    if (std::ranges::find(tiers, Tier::disk) != tiers.end()) {
      // What was copied is on the disk before it is cut.
      CAIRN_TRY(checkpoint());
      CAIRN_TRY(label_slot_file(disk_files, layout(Tier::disk), size_in(sizes.after, Tier::disk)));
      options().reached("resize.labelled");
    }
    return remember(sizes.after);
  };
  if (auto kept = keep(); !kept) {
    set_limits(sizes.before);
    return kept;
  }
  options().reached("resize.remembered");
  {
    Section section(*this);
    CAIRN_TRY(check_usable());
    take_settings(sizes.after);
  }
  for (Tier tier : tiers) trim(tier);
  return {};
}

void CacheCore::wait_until_shrunk(Tier tier) {
  const auto deadline = std::chrono::steady_clock::now() + kShrinkPatience;
  for (int looks = 1; std::chrono::steady_clock::now() < deadline; ++looks) {
    {
      Section section(*this);
      const SlotPool& slots = store.pool(tier);
      if (dropped || slots.beyond_count() == 0) return;
      // What only leases hold, of keys that lie elsewhere by now, is not waited for.
      const auto is_waited_for = [&](const SlotRecord& slot) {
        return slot.life != SlotLife::free && !slot.gone;
      };
      bool any = looks % kLooksAWhile != 0;
      for (SlotNumber slot = slots.limit(); slot < slots.end() && !any; ++slot) {
        any = is_waited_for(slots[slot]);
      }
      if (!any) return;
    }
    std::this_thread::sleep_for(kLook);
  }
}

void CacheCore::trim(Tier tier) {
  TierSpace& space = *spaces[index_of(tier)];
  std::uint32_t limit = 0;
  {
    MutexLock lock(mutex);
    const SlotPool& slots = store.pool(tier);
    if (dropped || slots.beyond_count() > 0) return;
    limit = slots.limit();
    relocating[index_of(tier)].trim_due = false;
  }
  const auto give_back = [&]() -> Result<> {
    if (tier != Tier::disk) return space.keep_below(limit);
    if (limit >= space.room()) return {};
    auto shorter = resize_slot_file(space.layout(), limit);
    if (!shorter) return std::move(shorter).error();
    space.set_files(std::move(*shorter));
    options().reached("resize.cut");
    return {};
  };
  if (auto given = give_back(); !given) {
    services->log.warning(
        "a tier that shrank keeps what it had",
        {{"cache", config.name}, {"tier", to_string(tier)}, {"detail", given.error().detail}});
  }
}

void CacheCore::trim_if_due() {
  std::vector<Tier> due;
  {
    MutexLock lock(mutex);
    if (dropped || changing) return;
    for (Tier tier : kTiers) {
      if (relocating[index_of(tier)].trim_due && store.pool(tier).beyond_count() == 0) {
        due.push_back(tier);
      }
    }
    if (due.empty()) return;
    changing = true;
  }
  for (Tier tier : due) trim(tier);
  end_change();
}

void CacheCore::settle_sizes(Section& section) {
  for (Tier tier : kTiers) {
    const SlotPool& slots = store.pool(tier);
    if (slots.beyond_count() == 0) continue;
    // A copy under way has two slots, and so has one whose old slot leases hold.
    const std::uint32_t staying = slots.capacity() - slots.free_count() -
                                  store.leaving_count(tier) - store.superseded_count(tier) -
                                  relocating[index_of(tier)].under_way;
    if (staying > slots.limit()) {
      const std::uint32_t excess = std::min(staying - slots.limit(), kEvictStep);
      if (reclaim(section, tier, {.count = excess}) == 0) cut_chains(tier, excess);
    } else {
      // Not before: what is being copied cannot be evicted, and what is worth more would go.
      relocate_some(section, tier);
    }
  }
}

// A prefix whose rest lies in other tiers is kept by eviction, but has no room here any more.
void CacheCore::cut_chains(Tier tier, std::uint32_t count) {
  Relocating& state = relocating[index_of(tier)];
  const auto now = std::chrono::steady_clock::now();
  if (store.leaving_count(tier) > 0 || now < state.no_cut_before) return;
  if (store.cut_chains(tier, count) == 0) state.no_cut_before = now + kAfterFailure;
}

void CacheCore::relocate_some(Section& section, Tier tier) {
  Relocating& state = relocating[index_of(tier)];
  const SlotPool& slots = store.pool(tier);
  if (state.under_way > 0 || section.now() < state.not_before) return;
  const std::uint64_t most =
      tier == Tier::disk ? kDiskAtOnce
                         : std::clamp<std::uint64_t>(kBytesAtOnce / block_bytes, 1, kMostAtOnce);
  auto items = std::make_shared<std::vector<Relocated>>();
  const std::uint32_t look = std::min(kLookStep, slots.end() - slots.limit());
  for (std::uint32_t i = 0; i < look && items->size() < most && slots.free_count() > 0; ++i) {
    if (state.next < slots.limit() || state.next >= slots.end()) state.next = slots.limit();
    const SlotRef from(tier, state.next++);
    const SlotRecord& slot = store.record(from);
    // A movement counts on its source; a reader goes on with the old slot, but looks the same.
    if (slot.life != SlotLife::committed || slot.gone || slot.pins != slot.leases) continue;
    store.pin_in_place(from);
    const SlotRef to = store.take(tier, slot.priority);
    Relocated item{.from = from, .to = to, .generation = slot.generation};
    if (tier == Tier::disk) item.label = label_of_copy(section, from, to);
    items->push_back(std::move(item));
  }
  if (items->empty()) return;
  state.under_way = static_cast<std::uint32_t>(items->size());
  section.after([self = shared_from_this(), tier, items] {
    if (tier == Tier::disk) {
      self->copy_on_disk(items);
    } else {
      self->copy_in_memory(tier, items);
    }
  });
}

void CacheCore::copy_in_memory(Tier tier, const Relocations& items) {
  TransferJob job;
  job.source = job.destination = &layout(tier);
  job.urgency = Urgency::background;
  for (const Relocated& item : *items) job.pairs.push_back({item.from.slot(), item.to.slot()});
  submit(std::move(job),
         [this, tier, items](JobOutcome outcome) {
           const Error cancelled{ErrorCode::cancelled, "the server is shutting down"};
           if (outcome.state == JobState::cancelled) {
             for (Relocated& item : *items) item.error = cancelled;
           }
           for (const BlockFailure& failure : outcome.failures) {
             (*items)[failure.index].error = failure.error;
           }
           relocated(tier, items);
         },
         {});
}

namespace {

std::optional<Error> error_of(const JobOutcome& outcome) {
  if (outcome.state == JobState::done) return std::nullopt;
  if (!outcome.failures.empty()) return outcome.failures.front().error;
  return Error{ErrorCode::cancelled, "the server is shutting down"};
}

}  // namespace

// Through memory, so that what is written again was compared with its checksum.
void CacheCore::copy_on_disk(const Relocations& items) {
  auto left = std::make_shared<std::atomic<std::size_t>>(items->size());
  for (Relocated& item : *items) {
    const auto ended = [self = shared_from_this(), items, left, &item](std::optional<Error> error) {
      item.error = std::move(error);
      if (--*left == 0) self->relocated(Tier::disk, items);
    };
    staging.acquire(
        [self = shared_from_this(), &item, ended](Result<CanonicalStaging::Block> block) {
          if (!block) return ended(block.error());
          auto held = std::make_shared<CanonicalStaging::Block>(std::move(*block));
          TransferJob read;
          read.source = &self->layout(Tier::disk);
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
                         write.destination = &self->layout(Tier::disk);
                         write.urgency = Urgency::background;
                         write.pairs.push_back({0, item.to.slot()});
                         write.labels.push_back(item.label);
                         self->submit(
                             std::move(write),
                             [ended, held](const JobOutcome& written) { ended(error_of(written)); },
                             {});
                       },
                       {});
        });
  }
}

void CacheCore::relocated(Tier tier, const Relocations& items) {
  if (tier == Tier::disk) options().reached("resize.written");
  Section section(*this);
  Relocating& state = relocating[index_of(tier)];
  state.under_way = 0;
  for (const Relocated& item : *items) {
    const SlotRecord& slot = store.record(item.from);
    if (item.error) {
      state.not_before = section.now() + kAfterFailure;
      if (item.unreadable) drop_unreadable(item.from, item.generation, *item.error);
    }
    // Where it went, or somebody else has begun to use it, it is looked at again.
    const bool stays = item.error || dropped || slot.gone || slot.pins != slot.leases + 1;
    if (!stays) store.relocate({.from = item.from, .to = item.to});
    store.unpin_in_place(item.from);
    if (stays) {
      store.unpin(item.to);
    } else {
      store.unpin_in_place(item.to);
    }
  }
  if (tier == Tier::disk) options().reached("resize.noted");
}

Result<> Cache::change(const CacheChange& change, const Remember& remember) {
  return core_->change(change, remember);
}

}  // namespace cairn
