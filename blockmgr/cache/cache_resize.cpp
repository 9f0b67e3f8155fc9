// Changes settings and sizes of a cache in use.
//
// A growing tier has more slots at once. A shrinking tier gets a limit and hands out only slots
// below it. Every hold of the lock then does a part of the rest (Resizing): it evicts the next
// victims until all remaining blocks fit below the limit, and copies blocks beyond the limit to
// slots below. It also copies leased blocks: the index finds a block in its new slot, and the last
// lease that names the old slot frees it. A slot beyond the limit is removed when it becomes free.
// After the last one, the tier returns their memory and file space.
//
// A crash leaves the old or the new configuration: files grow before the cache's description says
// so, and are cut only after it does. In between, a copy may be in two slots, with the same bytes.
#include "blockmgr/cache/cache_resize.hpp"

#include <algorithm>
#include <chrono>
#include <new>
#include <string>

#include "blockmgr/cache/cache.hpp"
#include "blockmgr/core/cache_core.hpp"
#include "blockmgr/disk_tier/disk_checkpoint.hpp"
#include "blockmgr/disk_tier/disk_tier.hpp"
#include "blockmgr/index/config_check.hpp"
#include "layouts/builder.hpp"
#include "transport/io/slot_file.hpp"

namespace cairn {
namespace {

// How long a change waits for blocks to move. Blocks leased for longer are moved after it.
constexpr std::chrono::seconds kShrinkPatience{10};
constexpr std::chrono::milliseconds kLook{2};
// Every this many looks, checks whether anything can still move.
constexpr int kLooksAWhile = 25;
// Every configuration and layout that was ever in use is kept for concurrent readers: 10 MB for
// this many.
constexpr std::size_t kMaxKept = 16'384;
// How long a change waits for the one before it; a trim by tick() ends sooner.
constexpr std::chrono::seconds kChangePatience{2};
// Slots that a tier loses under one hold of the lock: some 5 ns each.
constexpr std::uint32_t kSlotsLostAtOnce = 16'384;

std::uint32_t size_in(const CacheConfig& config, Tier tier) {
  const auto& wanted = config.tiers[index_of(tier)];
  return wanted ? wanted->num_blocks : 0;
}

bool is_sparse(const CacheCore& core) { return core.slot_contents->is_sparse(); }

// One change, from its check to its end.
class CacheChanging {
 public:
  explicit CacheChanging(CacheCore& core) : core_(core) {}

  Result<> begin();
  void end();
  Result<> run(const CacheChange& change, const Cache::Remember& remember);
  void trim(Tier tier);

 private:
  struct Growth {
    std::optional<BlockLayout> layout;  // more memory, or the longer files; nullopt: there is room
    bool follows = false;               // the memory is in the file of the tier's first part
    std::vector<PreparedMemory> prepared;
  };
  struct TierSize {
    Tier tier = Tier::pinned;
    std::uint32_t num_slots = 0;
  };
  struct Sizes {
    const CacheConfig& before;
    const CacheConfig& after;
  };
  Result<> check(const CacheConfig& before, const CacheConfig& wanted);
  Result<> check_kept() const;
  Result<> grow(const CacheConfig& before, const CacheConfig& grown,
                const Cache::Remember& remember);
  Result<Growth> make_room(Tier tier, std::uint32_t num_slots);
  void take_room(CacheLock& locked, TierSize size, Growth growth);
  BlockStore::NewOrder new_order(const CacheConfig& wanted);
  void take_settings(CacheLock& locked, const CacheConfig& wanted);
  void label_files(std::uint32_t num_slots);
  Result<> shrink(const Sizes& sizes, const std::vector<Tier>& tiers,
                  const Cache::Remember& remember);
  void lower_limit(Tier tier, std::uint32_t num_slots);
  void wait_until_shrunk(Tier tier);

  CacheCore& core_;
};

Result<> CacheChanging::begin() {
  for (int looks = 1; true; ++looks) {
    {
      CacheLock locked(core_, LockUse::upkeep);
      CAIRN_TRY(locked.check_usable());
      if (locked->sizes.begin()) return {};
    }
    if (looks * kLook >= kChangePatience) {
      return Error{ErrorCode::state_conflict,
                   "cache " + core_.config.name + " is being changed by another request"};
    }
    core_.services->scheduler.executor().sleep_for(kLook);
  }
}

void CacheChanging::end() {
  CacheLock locked(core_, LockUse::upkeep);
  locked->sizes.end();
}

Result<> CacheChanging::check(const CacheConfig& before, const CacheConfig& wanted) {
  CAIRN_TRY(check_config(wanted, core_.options()));
  CacheLock locked(core_, LockUse::upkeep);
  CAIRN_TRY(locked.check_usable());
  locked->leases.end_overdue(locked);
  for (Tier tier : kTiers) {
    const std::uint32_t size = size_in(wanted, tier);
    if (size == size_in(before, tier)) continue;
    const std::string name = "tiers." + std::string(to_string(tier)) + ".num_blocks is " +
                             std::to_string(size) + "; the tier ";
    if (wanted.tiers[index_of(tier)]->import) {
      return Error{ErrorCode::state_conflict, name + "is imported, and has its owner's memory"};
    }
    const SlotPool& slots = locked->store.pool(tier);
    if (slots.leased_units() > size) {
      return Error{ErrorCode::leased, name + "has " + std::to_string(slots.leased_count()) +
                                          " blocks that leases hold"};
    }
    if (slots.protected_units() > size) {
      return Error{ErrorCode::leased, name + "has " + std::to_string(slots.protected_count()) +
                                          " blocks that pins hold"};
    }
  }
  return {};
}

Result<> CacheChanging::check_kept() const {
  std::size_t kept = core_.settings.kept();
  for (const auto& space : core_.spaces) kept += space ? space->kept() : 0;
  if (kept < kMaxKept) return {};
  return Error{ErrorCode::state_conflict,
               "cache " + core_.config.name + " has had " + std::to_string(kMaxKept) +
                   " different settings and sizes, which is the most until the next restart of "
                   "the server"};
}

Result<> CacheChanging::run(const CacheChange& change, const Cache::Remember& remember) {
  const CacheConfig before = *core_.settings;
  auto after = changed(before, change);
  if (!after) return std::move(after).error();
  const CacheConfig& wanted = *after;
  if (wanted == before) return {};
  CAIRN_TRY(check(before, wanted));
  CAIRN_TRY(check_kept());
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

Result<> CacheChanging::grow(const CacheConfig& before, const CacheConfig& grown,
                             const Cache::Remember& remember) {
  std::array<std::optional<Growth>, kNumTiers> growths;
  // If a later step fails, shrinks the grown files again. Grown memory frees itself.
  const auto undo = [&](Error error) {
    if (const auto& disk = growths[index_of(Tier::disk)]; disk && disk->layout) {
      static_cast<void>(resize_slot_file(core_.slots(Tier::disk),
                                         {slots_in(before, Tier::disk), is_sparse(core_)}));
    }
    return error;
  };
  for (Tier tier : kTiers) {
    if (size_in(grown, tier) == size_in(before, tier)) continue;
    auto growth = make_room(tier, slots_in(grown, tier));
    if (!growth) return undo(std::move(growth).error());
    growths[index_of(tier)] = std::move(*growth);
  }
  core_.options().failpoint("resize.grown");
  if (auto kept = remember(grown); !kept) return undo(std::move(kept).error());
  core_.options().failpoint("resize.remembered");
  std::optional<BlockStore::NewOrder> order;
  const auto take = [&]() -> Result<> {
    try {
      if (grown.eviction != before.eviction) order.emplace(new_order(grown));
      CacheLock locked(core_, LockUse::upkeep);
      CAIRN_TRY(locked.check_usable());
      for (Tier tier : kTiers) {
        auto& growth = growths[index_of(tier)];
        if (growth) take_room(locked, {tier, slots_in(grown, tier)}, std::move(*growth));
      }
      if (order) locked->store.set_eviction(*order);
      take_settings(locked, grown);
    } catch (const std::bad_alloc&) {
      return Error{ErrorCode::no_capacity, "there is no memory for the cache's index"};
    }
    return {};
  };
  if (auto taken = take(); !taken) {
    static_cast<void>(remember(before));
    return taken;
  }
  if (growths[index_of(Tier::disk)]) label_files(slots_in(grown, Tier::disk));
  return {};
}

Result<CacheChanging::Growth> CacheChanging::make_room(Tier tier, std::uint32_t num_slots) {
  TierSpace& space = *core_.spaces[index_of(tier)];
  Growth growth;
  const std::uint32_t room = space.room();
  if (tier == Tier::disk) {
    if (num_slots <= room) return growth;
    auto longer = resize_slot_file(space.slots(), {num_slots, is_sparse(core_)});
    if (!longer) return std::move(longer).error();
    growth.layout.emplace(std::move(*longer));
    return growth;
  }
  bool is_mapped = false;
  {
    // While slots beyond the end are in use, the tier keeps all its memory.
    CacheLock locked(core_, LockUse::upkeep);
    is_mapped = locked->mapped[index_of(tier)];
    if (locked->store.pool(tier).beyond_count() > 0) num_slots = std::max(num_slots, room);
  }
  CAIRN_TRY(space.keep_below(std::min(num_slots, room)));
  if (num_slots <= room) return growth;
  if (!space.may_have_more_parts()) {
    return Error{
        ErrorCode::state_conflict,
        "tiers." + std::string(to_string(tier)) + " lies in " +
            std::to_string(TierSpace::kMaxParts) +
            " parts, one per growth, which is the most; delete and create the cache to get one"};
  }
  const auto place = space.next_place();
  if (is_mapped && !place) {
    return Error{ErrorCode::state_conflict,
                 "tiers." + std::string(to_string(tier)) +
                     " is exported, and its memory cannot become longer in one piece: that needs "
                     "the layout fully_contiguous and blocks that end at a page"};
  }
  const TierConfig& made = *core_.config.tiers[index_of(tier)];
  LayoutConfig shape = tier_shape(core_.config, tier);
  shape.num_blocks = num_slots - room;
  auto shaped = LayoutBuilder().config(shape);
  auto placed = made.layout == LayoutKind::layer_separate
                    ? std::move(shaped).layer_separate(made.block_dim)
                    : std::move(shaped).fully_contiguous();
  auto more =
      std::move(placed)
          .allocate_pinned(core_.services->runtime, {.numa_aware = made.numa_aware,
                                                     .device_id = made.device_id,
                                                     .place = place.value_or(SharedFilePlace())})
          .build();
  if (!more) return std::move(more).error();
  growth.follows = place.has_value();
  if (core_.slot_contents)
    growth.prepared = prepare_for_disk(*more, core_.config.name, *core_.services);
  growth.layout.emplace(std::move(*more));
  return growth;
}

void CacheChanging::take_room(CacheLock& locked, TierSize size, Growth growth) {
  TierSpace& space = *core_.spaces[index_of(size.tier)];
  if (growth.layout) {
    if (size.tier == Tier::disk) {
      core_.slot_contents->grow(size.num_slots);
      space.set_files(std::move(*growth.layout));
    } else {
      space.add(std::move(*growth.layout), std::move(growth.prepared), growth.follows);
    }
  }
  ++locked->size_changes[index_of(size.tier)];
  locked->store.resize(size.tier, size.num_slots);
}

// Only a change moves the ends, and only one change runs at a time.
BlockStore::NewOrder CacheChanging::new_order(const CacheConfig& wanted) {
  BlockStore::Options options{.eviction = wanted.eviction,
                              .policy_blocks = policy_blocks(wanted),
                              .history_bytes = core_.options().max_history_bytes};
  std::array<std::uint32_t, kNumTiers> ends{};
  {
    CacheLock locked(core_, LockUse::upkeep);
    for (Tier tier : kTiers) {
      const std::uint32_t size = slots_in(wanted, tier);
      options.capacities[index_of(tier)] = size;
      ends[index_of(tier)] = std::max(size, locked->store.pool(tier).end());
    }
  }
  return {options, ends};
}

void CacheChanging::take_settings(CacheLock& locked, const CacheConfig& wanted) {
  if (wanted.offload != core_.settings->offload) {
    locked->store.set_offload_on_evict(wanted.offload == OffloadMode::on_evict);
  }
  for (Tier tier : kTiers) {
    locked->pressure.set(tier, pressure_of(wanted, tier, core_.options()), size_in(wanted, tier));
  }
  core_.settings.set(wanted);
}

void CacheChanging::label_files(std::uint32_t num_slots) {
  // The next start corrects files that say less than the cache's description.
  const auto labelled = label_slot_file(core_.disk_files, core_.slots(Tier::disk), num_slots);
  if (labelled) return;
  core_.services->log.warning("cannot write the number of slots into a slot file",
                              {{"cache", core_.config.name}, {"detail", labelled.error().detail}});
}

Result<> CacheChanging::shrink(const Sizes& sizes, const std::vector<Tier>& tiers,
                               const Cache::Remember& remember) {
  const auto set_limits = [&](const CacheConfig& limits) {
    for (Tier tier : tiers) lower_limit(tier, slots_in(limits, tier));
    CacheLock locked(core_, LockUse::upkeep);
    for (Tier tier : tiers) {
      ++locked->size_changes[index_of(tier)];
      locked->store.resize(tier, slots_in(limits, tier));
      locked->sizes.set_trim_due(tier, true);
      locked->pressure.set(tier, pressure_of(limits, tier, core_.options()), size_in(limits, tier));
    }
  };
  set_limits(sizes.after);
  for (Tier tier : tiers) wait_until_shrunk(tier);
  const auto keep = [&]() -> Result<> {
    if (std::ranges::find(tiers, Tier::disk) != tiers.end()) {
      // Make the copies durable before the file is cut.
      CAIRN_TRY(checkpoint(core_));
      CAIRN_TRY(label_slot_file(core_.disk_files, core_.slots(Tier::disk),
                                slots_in(sizes.after, Tier::disk)));
      core_.options().failpoint("resize.labelled");
    }
    return remember(sizes.after);
  };
  if (auto kept = keep(); !kept) {
    set_limits(sizes.before);
    return kept;
  }
  core_.options().failpoint("resize.remembered");
  {
    CacheLock locked(core_, LockUse::upkeep);
    CAIRN_TRY(locked.check_usable());
    take_settings(locked, sizes.after);
  }
  for (Tier tier : tiers) trim(tier);
  return {};
}

// Lowers the limit in steps. In between the lock is free, and blocks beyond the limit begin to move
// or be evicted.
void CacheChanging::lower_limit(Tier tier, std::uint32_t num_slots) {
  for (bool more = true; more;) {
    CacheLock locked(core_, LockUse::upkeep);
    const std::uint32_t limit = locked->store.pool(tier).limit();
    const std::uint32_t slab = locked->store.pool(tier).slab_units();
    more = !locked->dropped && slab <= kSlotsLostAtOnce && limit > num_slots + kSlotsLostAtOnce;
    if (more) locked->store.resize(tier, limit - kSlotsLostAtOnce / slab * slab);
  }
}

void CacheChanging::wait_until_shrunk(Tier tier) {
  for (int looks = 1; looks * kLook < kShrinkPatience; ++looks) {
    {
      CacheLock locked(core_, LockUse::upkeep);
      const SlotPool& slots = locked->store.pool(tier);
      if (locked->dropped || slots.beyond_count() == 0) return;
      // Do not wait for slots that only leases hold and whose keys are already in another slot.
      const auto is_waited_for = [&](const SlotRecord& slot) {
        return slot.life != SlotLife::free && !slot.gone;
      };
      bool any = looks % kLooksAWhile != 0;
      for (SlotNumber slot = slots.limit(); slot < slots.end() && !any; ++slot) {
        any = is_waited_for(slots[slot]);
      }
      if (!any) return;
    }
    core_.services->scheduler.executor().sleep_for(kLook);
  }
}

void CacheChanging::trim(Tier tier) {
  TierSpace& space = *core_.spaces[index_of(tier)];
  std::uint32_t limit = 0;
  {
    CacheLock locked(core_, LockUse::upkeep);
    const SlotPool& slots = locked->store.pool(tier);
    if (locked->dropped || slots.beyond_count() > 0) return;
    limit = slots.limit();
    locked->sizes.set_trim_due(tier, false);
  }
  const auto give_back = [&]() -> Result<> {
    if (tier != Tier::disk) return space.keep_below(limit);
    if (limit >= space.room()) return {};
    auto shorter = resize_slot_file(space.slots(), {limit, is_sparse(core_)});
    if (!shorter) return std::move(shorter).error();
    space.set_files(std::move(*shorter));
    core_.options().failpoint("resize.cut");
    return {};
  };
  if (auto given = give_back(); !given) {
    core_.services->log.warning("cannot free the memory or files of a tier that shrank",
                                {{"cache", core_.config.name},
                                 {"tier", to_string(tier)},
                                 {"detail", given.error().detail}});
  }
}

}  // namespace

Result<> change_cache(CacheCore& core, const CacheChange& change, const Cache::Remember& remember) {
  CacheChanging changing(core);
  CAIRN_TRY(changing.begin());
  struct Ending {
    ~Ending() { changing.end(); }
    CacheChanging& changing;
  } const ending{changing};
  return changing.run(change, remember);
}

void trim_if_due(CacheCore& core) {
  std::vector<Tier> due;
  {
    CacheLock locked(core, LockUse::upkeep);
    if (locked->dropped || locked->sizes.under_way()) return;
    for (Tier tier : kTiers) {
      if (locked->sizes.trim_due(tier) && locked->store.pool(tier).beyond_count() == 0) {
        due.push_back(tier);
      }
    }
    if (due.empty() || !locked->sizes.begin()) return;
  }
  CacheChanging changing(core);
  for (Tier tier : due) changing.trim(tier);
  changing.end();
}

Result<> Cache::change(const CacheChange& change, const Remember& remember) {
  const CacheConfig before = config();
  CAIRN_TRY(change_cache(*core_, change, remember));
  const CacheConfig after = config();
  if (after.eviction != before.eviction || different_blocks(after) != different_blocks(before)) {
    core_->reuse.start_anew(
        {.eviction = after.eviction, .capacity_blocks = different_blocks(after)});
  }
  return {};
}

}  // namespace cairn
