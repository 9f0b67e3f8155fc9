#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/result.hpp"
#include "blockmgr/core/cache_core.hpp"
#include "blockmgr/snapshot/snapshot_job.hpp"

// Internal: room for a whole snapshot in a cache whose blocks it replaces.
namespace cairn {

// The block's highest tier, those below it, then those above it.
std::array<Tier, kNumTiers> by_preference(Tier first);

// Which tier would take which blocks of a snapshot if the cache were empty. It counts as the cache
// itself does: what it plans finds slots. If short blocks share a tier's room and come back longer,
// some are evicted again. Not thread-safe.
class ReplacementPlan {
 public:
  // Blocks that follow each other in the snapshot, of one KV group.
  struct Blocks {
    Tier first = Tier::device;  // the highest tier that they were in
    KvGroupNumber kv_group = 0;
    std::uint8_t priority = 0;
    std::uint32_t count = 0;
  };
  struct Run {
    Tier tier = Tier::device;
    KvGroupNumber kv_group = 0;
    std::uint8_t priority = 0;
    std::uint32_t count = 0;
  };

  explicit ReplacementPlan(CacheCore& core);
  // Returns how many of the blocks find room, from the first one on.
  std::uint32_t add(const Blocks& blocks);
  // In the order of the snapshot.
  const std::vector<Run>& runs() const { return runs_; }
  std::uint64_t blocks() const { return blocks_; }  // that find room
  // Whether the tiers still have the sizes that it was made for.
  bool fits(CacheLock& locked) const;

 private:
  // The free units of an empty tier.
  class Room {
   public:
    Room(const SlotSizes& sizes, std::uint32_t units);
    std::uint32_t units() const { return units_; }
    bool take(KvGroupNumber kv_group, std::uint32_t count);

   private:
    std::uint32_t units_;
    std::uint32_t free_;
    std::optional<SlabMap> slabs_;  // of blocks of several sizes
  };
  std::array<std::optional<Room>, kNumTiers> rooms_;
  std::vector<Run> runs_;
  std::uint64_t blocks_ = 0;
};

// Slots that were allocated for a snapshot's blocks, each with one pin. The destructor frees those
// that were not handed out. Move-only. Not thread-safe.
class ReservedSlots {
 public:
  ReservedSlots(std::shared_ptr<CacheCore> core, std::vector<SlotRef> slots)
      : core_(std::move(core)), slots_(std::move(slots)) {}
  ReservedSlots(ReservedSlots&&) = default;
  ReservedSlots& operator=(ReservedSlots&&) = delete;
  ~ReservedSlots();
  // The next ones, whose pins the caller takes over. REQUIRES: as many are left.
  std::span<const SlotRef> next(std::uint32_t count);

 private:
  std::shared_ptr<CacheCore> core_;
  std::vector<SlotRef> slots_;
  std::size_t handed_out_ = 0;
};

// Error: leased if a lease holds any block of the cache.
Result<> check_unleased(CacheCore& core);
// Drops every block of the cache and allocates the planned slots, under one hold of the lock: no
// other request gets a slot in between. First waits some seconds until no block is read, written or
// moved, because such a block cannot be replaced. After an error nothing has changed. Errors:
// leased; state_conflict if a tier's size has changed since the plan; unknown_cache; cancelled.
Result<ReservedSlots> empty_for(const std::shared_ptr<CacheCore>& core, const ReplacementPlan& plan,
                                SnapshotProgress& progress);

}  // namespace cairn
