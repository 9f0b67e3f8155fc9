#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/clock.hpp"
#include "base/result.hpp"
#include "blockmgr/index/slot_ref.hpp"
#include "transport/transfer/transfer_job.hpp"

namespace cairn {

class CacheCore;
class CacheLock;

// Changes the size of tiers. Slots at and above a tier's limit are no longer handed out. Each
// hold of the lock does a part of the rest: it evicts in the usual order until the remaining blocks
// fit below the limit, then copies blocks from slots above it to slots below. Part of a cache's
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

 private:
  struct OneTier {
    std::uint32_t under_way = 0;  // copies in progress
    bool trim_due = false;
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
  static void copy_in_memory(CacheCore& core, Tier tier, const Relocations& items);
  static void copy_on_disk(CacheCore& core, const Relocations& items);
  static void copies_ended(CacheCore& core, Tier tier, const Relocations& items);
  void relocated(CacheLock& locked, Tier tier, const std::vector<Relocated>& items);

  std::array<OneTier, kNumTiers> tiers_;
  bool under_way_ = false;
};

}  // namespace cairn
