#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/clock.hpp"
#include "base/result.hpp"
#include "blockmgr/index/slab_map.hpp"
#include "blockmgr/index/slot_ref.hpp"
#include "transport/transfer/transfer_job.hpp"

namespace cairn {

class CacheCore;
class CacheLock;

// Moves blocks within a tier, so that its memory can be used otherwise.
//
// If a tier shrinks, slots at and above its limit are no longer handed out. Each hold of the lock
// does a part of the rest: it evicts in the usual order until the remaining blocks fit below the
// limit, then copies blocks from slots above it to slots below.
//
// If blocks have several sizes, a slab is vacated for blocks of another size. Part of a cache's
// state: each call takes the CacheLock.
class Resizing {
 public:
  // One change of settings or sizes at a time. Returns false if another is in progress.
  bool begin();
  void end() { under_way_ = false; }
  bool under_way() const { return under_way_; }

  // Whether memory or files used only by slots beyond the limit must be returned to the system once
  // those slots are free.
  void set_trim_due(Tier tier, bool due) { tiers_[index_of(tier)].trim_due = due; }
  bool trim_due(Tier tier) const { return tiers_[index_of(tier)].trim_due; }

  // One step for each tier that has slots in use beyond its limit.
  void go_on(CacheLock& locked);

  struct Room {
    KvGroupNumber kv_group = 0;
    std::uint64_t units = 0;
  };
  // Begins to vacate slabs in memory, so that blocks of the group find room. No effect while blocks
  // of the tier are being moved, or if no slab can be vacated.
  void vacate(CacheLock& locked, Tier tier, const Room& wanted);
  // Units of slabs that are being vacated.
  std::uint32_t vacating_units(Tier tier) const { return tiers_[index_of(tier)].vacating_units; }

 private:
  struct OneTier {
    std::uint32_t under_way = 0;  // units of copies in progress
    bool trim_due = false;
    std::vector<SlabNumber> vacating = {};
    std::uint32_t vacating_units = 0;
    SlotNumber next = 0;        // where the next search for copies beyond the limit starts
    TimePoint not_before{};     // after a failure, so that a broken disk is not used all the time
    TimePoint no_cut_before{};  // likewise, before the next look at every slot
  };
  struct Relocated {
    SlotRef from;
    SlotRef to;
    KvGroupNumber kv_group = 0;
    std::uint64_t generation = 0;  // of `from`
    SlotHeader header = {};        // of `to`, on disk
    std::optional<Error> error = {};
    bool unreadable = false;
  };
  using Relocations = std::shared_ptr<std::vector<Relocated>>;

  void cut_chains(CacheLock& locked, Tier tier, std::uint32_t count);
  void relocate_some(CacheLock& locked, Tier tier);
  // Pins the block, and takes a slot for it.
  static Relocated taken(CacheLock& locked, SlotRef from);
  void begin_copies(CacheLock& locked, Tier tier, const Relocations& items);
  static void copy_in_memory(CacheCore& core, Tier tier, const Relocations& items);
  static void copy_on_disk(CacheCore& core, const Relocations& items);
  static void copies_ended(CacheCore& core, Tier tier, const Relocations& items);
  void relocated(CacheLock& locked, Tier tier, const std::vector<Relocated>& items);

  std::array<OneTier, kNumTiers> tiers_;
  bool under_way_ = false;
};

}  // namespace cairn
