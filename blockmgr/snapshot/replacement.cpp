#include "blockmgr/snapshot/replacement.hpp"

#include <algorithm>
#include <chrono>
#include <string>
#include <thread>
#include <utility>

#include "base/assert.hpp"
#include "blockmgr/cache/clearing.hpp"

namespace cairn {
namespace {

// A copy between tiers and a client's read take milliseconds. After 5 s, something holds on.
constexpr auto kLookAgainAfter = std::chrono::milliseconds(10);
constexpr int kMaxLooks = 500;
// Slots freed under one hold of the lock: some 30 ns each.
constexpr std::size_t kFreeStep = 128;

Error leased(const CacheCore& core, std::uint64_t blocks) {
  return {ErrorCode::leased, "leases hold " + std::to_string(blocks) + " blocks of cache " +
                                 core.config.name + "; release them, or let them end"};
}

bool nothing_is_pinned(CacheLock& locked) {
  return std::ranges::all_of(kTiers, [&](Tier tier) {
    const SlotPool& slots = locked->store.pool(tier);
    return slots.count(SlotState::allocated) == 0 && slots.count(SlotState::committed) == 0;
  });
}

// REQUIRES: `slots` has the capacity.
void take(CacheLock& locked, const ReplacementPlan& plan, std::vector<SlotRef>& slots) {
  for (const ReplacementPlan::Run& run : plan.runs()) {
    CAIRN_ASSERT(locked->store.pool(run.tier).slots_for(run.kv_group) >= run.count,
                 "a plan for an empty cache has to fit into one");
    for (std::uint32_t i = 0; i < run.count; ++i) {
      slots.push_back(
          locked->store.take(run.tier, {.kv_group = run.kv_group, .priority = run.priority}));
    }
  }
}

}  // namespace

std::array<Tier, kNumTiers> by_preference(Tier first) {
  std::array<Tier, kNumTiers> tiers{};
  auto out = tiers.begin();
  for (Tier tier : kTiers) {
    if (tier >= first) *out++ = tier;
  }
  for (auto tier = kTiers.rbegin(); tier != kTiers.rend(); ++tier) {
    if (*tier < first) *out++ = *tier;
  }
  return tiers;
}

ReplacementPlan::Room::Room(const SlotSizes& sizes, std::uint32_t units)
    : units_(units), free_(units) {
  if (sizes.are_several()) slabs_.emplace(sizes, units);
}

bool ReplacementPlan::Room::take(KvGroupNumber kv_group, std::uint32_t count) {
  if (!slabs_) {
    if (free_ < count) return false;
    free_ -= count;
    return true;
  }
  if (slabs_->free_for(kv_group) < count) return false;
  for (std::uint32_t i = 0; i < count; ++i) slabs_->take(kv_group);
  return true;
}

ReplacementPlan::ReplacementPlan(CacheCore& core) {
  CacheLock locked(core, LockUse::upkeep);
  for (Tier tier : kTiers) {
    const std::uint32_t units = locked->store.pool(tier).limit();
    if (units > 0) rooms_[index_of(tier)].emplace(locked->store.sizes(tier), units);
  }
}

bool ReplacementPlan::fits(CacheLock& locked) const {
  return std::ranges::all_of(kTiers, [&](Tier tier) {
    const auto& room = rooms_[index_of(tier)];
    return locked->store.pool(tier).limit() == (room ? room->units() : 0);
  });
}

std::uint32_t ReplacementPlan::add(const Blocks& blocks) {
  for (Tier tier : by_preference(blocks.first)) {
    auto& room = rooms_[index_of(tier)];
    if (!room || !room->take(blocks.kv_group, blocks.count)) continue;
    runs_.push_back({.tier = tier,
                     .kv_group = blocks.kv_group,
                     .priority = blocks.priority,
                     .count = blocks.count});
    blocks_ += blocks.count;
    return blocks.count;
  }
  if (blocks.count == 1) return 0;
  Blocks part = blocks;
  part.count = blocks.count / 2;
  const std::uint32_t placed = add(part);
  if (placed < part.count) return placed;
  part.count = blocks.count - part.count;
  return placed + add(part);
}

ReservedSlots::~ReservedSlots() {
  if (handed_out_ == slots_.size()) return;
  CacheLock locked(*core_, LockUse::upkeep);
  while (handed_out_ < slots_.size()) {
    for (const SlotRef at :
         next(static_cast<std::uint32_t>(std::min(kFreeStep, slots_.size() - handed_out_)))) {
      locked->store.unpin(at);
    }
    if (handed_out_ < slots_.size()) locked.yield();
  }
}

std::span<const SlotRef> ReservedSlots::next(std::uint32_t count) {
  CAIRN_ASSERT(slots_.size() - handed_out_ >= count, "a block would get another's slot");
  const auto slots = std::span(slots_).subspan(handed_out_, count);
  handed_out_ += count;
  return slots;
}

Result<> check_unleased(CacheCore& core) {
  CacheLock locked(core, LockUse::upkeep);
  CAIRN_TRY(locked.check_usable());
  locked->leases.end_overdue(locked);
  const std::uint64_t pins = locked->store.lease_pins();
  if (pins > 0) return leased(core, pins);
  return {};
}

Result<ReservedSlots> empty_for(const std::shared_ptr<CacheCore>& core, const ReplacementPlan& plan,
                                SnapshotProgress& progress) {
  std::vector<SlotRef> slots;
  slots.reserve(plan.blocks());
  for (int looks = 0; looks < kMaxLooks; ++looks) {
    {
      CacheLock locked(*core, LockUse::evict);
      CAIRN_TRY(locked.check_usable());
      locked->leases.end_overdue(locked);
      if (const auto pins = locked->store.lease_pins(); pins > 0) return leased(*core, pins);
      if (!plan.fits(locked)) {
        return Error{ErrorCode::state_conflict,
                     "a tier of cache " + core->config.name + " has changed its size meanwhile"};
      }
      if (nothing_is_pinned(locked)) {
        CAIRN_TRY(progress.begin_change());
        clear_at_once(locked);
        take(locked, plan, slots);
        core->options().failpoint("restore.emptied");
        return ReservedSlots(core, std::move(slots));
      }
    }
    CAIRN_TRY(progress.check_wanted());
    std::this_thread::sleep_for(kLookAgainAfter);
  }
  return Error{ErrorCode::leased, "blocks of cache " + core->config.name +
                                      " are still being read, written or moved after " +
                                      std::to_string((kLookAgainAfter * kMaxLooks).count()) +
                                      " ms"};
}

}  // namespace cairn
