// Cache: evict, clear and erase on request.
#include <algorithm>
#include <ranges>
#include <string>

#include "base/hex.hpp"
#include "blockmgr/cache/cache.hpp"
#include "blockmgr/cache/clearing.hpp"
#include "blockmgr/core/cache_core.hpp"

namespace cairn {
namespace {

// Steps of evict() and clear() under the lock. Dropping a copy takes some 150 ns; offloading takes
// longer.
constexpr std::uint32_t kEvictStep = 64;
constexpr std::uint32_t kClearStep = 128;

void respond(CacheLock& locked, std::shared_ptr<Done<EvictResult>> done,
             Result<EvictResult> result) {
  locked.after([done = std::move(done), result = std::move(result)]() mutable {
    (*done)(std::move(result));
  });
}

// Leases, reads and copies pin a block for some time, and clients' pins protect it.
bool stays(const SlotRecord& slot) { return slot.pins > 0 || slot.is_protected; }

// Drops the copies of a key that nothing pins.
void evict_everywhere(CacheLock& locked, EntryNumber entry, EvictResult& result) {
  const auto slots = locked->store.entry(entry).slots;
  for (Tier tier : kTiers) {
    if (slots[index_of(tier)] == kNoSlot) continue;
    const SlotRef at(tier, slots[index_of(tier)]);
    if (stays(locked->store.record(at))) {
      ++result.leased;
    } else {
      locked->store.drop(at, EvictionReason::request);
      ++result.evicted;
    }
  }
}

// Evicts a key's copy in a tier, or all its copies. Adds the copies to offload to `leaving`.
void evict_key(CacheLock& locked, const BlockKey& key, std::optional<Tier> tier,
               EvictResult& result, std::vector<SlotRef>& leaving) {
  const EntryNumber entry = locked->store.find(key, locked.now());
  if (entry == kNoEntry) {
    ++result.missing;
    return;
  }
  if (!tier) return evict_everywhere(locked, entry, result);
  const SlotNumber slot = locked->store.entry(entry).slots[index_of(*tier)];
  if (slot == kNoSlot) {
    ++result.missing;
    return;
  }
  const SlotRef at(*tier, slot);
  if (stays(locked->store.record(at))) {
    ++result.leased;
  } else if (locked->store.wants_offload(at)) {
    locked->store.begin_leaving(at);
    leaving.push_back(at);
  } else {
    locked->store.drop(at, EvictionReason::request);
    ++result.evicted;
  }
}

// Waits for the offloads that an evict began, and for the evict itself; the last to end responds.
// Under the lock.
struct Offloads {
  std::shared_ptr<Done<EvictResult>> answer;
  EvictResult result = {};
  std::uint32_t parts = 1;

  void begin(CacheLock& locked, const std::shared_ptr<Offloads>& self,
             std::vector<SlotRef> leaving) {
    if (leaving.empty()) return;
    ++parts;
    const std::uint64_t total = leaving.size();
    locked->transfers.offload(locked, std::move(leaving), EvictionReason::request,
                              [self, total](CacheLock& inner, const TransferBatch& batch) {
                                self->result.evicted += batch.left;
                                self->result.offloaded += batch.offloaded;
                                self->result.leased += total - batch.left;
                                self->part_ended(inner);
                              });
  }
  void part_ended(CacheLock& locked) {
    if (--parts == 0) respond(locked, std::move(answer), result);
  }
};

}  // namespace

void Cache::evict(std::vector<BlockKey> keys, std::optional<Tier> tier, Done<EvictResult> done) {
  CacheCore& core = *core_;
  auto answer = std::make_shared<Done<EvictResult>>(std::move(done));
  CacheLock locked(core, LockUse::evict);
  const auto refuse = [&]() -> Result<> {
    CAIRN_TRY(locked.check_usable());
    if (tier) CAIRN_TRY(core.check_tier(*tier));
    return core.check_count(keys.size());
  };
  if (auto fine = refuse(); !fine) return respond(locked, answer, std::move(fine).error());
  locked->leases.end_overdue(locked);

  EvictResult result;
  std::vector<SlotRef> leaving;
  auto offloads = std::make_shared<Offloads>(Offloads{.answer = answer});
  std::size_t looked_at = 0;
  // The keys are usually a prefix: start at its tail.
  for (auto key = keys.rbegin(); key != keys.rend(); ++key) {
    if (looked_at > 0 && looked_at % kEvictStep == 0) {
      offloads->begin(locked, offloads, std::exchange(leaving, {}));
      locked.yield();
      if (locked->dropped) break;
    }
    ++looked_at;
    evict_key(locked, *key, tier, result, leaving);
  }
  offloads->begin(locked, offloads, std::move(leaving));
  offloads->result.evicted += result.evicted;
  offloads->result.leased += result.leased;
  offloads->result.missing += result.missing;
  offloads->part_ended(locked);
}

namespace {

std::vector<Tier> all_tiers(const CacheCore& core) {
  std::vector<Tier> tiers;
  for (Tier tier : kTiers) {
    if (core.spaces[index_of(tier)]) tiers.push_back(tier);
  }
  return tiers;
}

// Drops all unpinned copies of some tiers: first from the ends of chains upwards, then those left
// above pinned blocks.
class Clearing {
 public:
  Clearing(CacheCore& core, std::vector<Tier> tiers) : core_(core), tiers_(std::move(tiers)) {}

  Result<EvictResult> run_in_steps() {
    for (const bool only_tails : {true, false}) {
      for (Tier tier : tiers_) {
        std::uint32_t next = 0;
        for (bool more = true; more;) {
          CacheLock locked(core_, LockUse::evict);
          CAIRN_TRY(locked.check_usable());
          locked->leases.end_overdue(locked);
          const std::uint32_t end = std::min(locked->store.pool(tier).end(), next + kClearStep);
          for (; next < end; ++next) visit(locked, {tier, next}, only_tails);
          more = end < locked->store.pool(tier).end();
        }
      }
    }
    CacheLock locked(core_, LockUse::evict);
    publish_if_empty(locked);
    return result_;
  }

  void run_at_once(CacheLock& locked) {
    for (const bool only_tails : {true, false}) {
      for (Tier tier : tiers_) {
        const std::uint32_t end = locked->store.pool(tier).end();
        for (SlotNumber slot = 0; slot < end; ++slot) visit(locked, {tier, slot}, only_tails);
      }
    }
    publish_if_empty(locked);
  }

 private:
  void publish_if_empty(CacheLock& locked) const {
    const auto is_empty = [&locked](Tier tier) {
      const SlotPool& slots = locked->store.pool(tier);
      return slots.count(SlotState::committed) == 0 && slots.count(SlotState::evictable) == 0;
    };
    if (locked->dropped || !std::all_of(tiers_.begin(), tiers_.end(), is_empty)) return;
    const bool all = std::all_of(kTiers.begin(), kTiers.end(), is_empty);
    locked->store.publish_cleared(all ? std::nullopt : std::optional(tiers_.front()));
  }

  void visit(CacheLock& locked, SlotRef at, bool only_tails) {
    const SlotRecord& slot = locked->store.record(at);
    if (slot.life == SlotLife::free || slot.gone) return;
    if (stays(slot)) {
      if (!only_tails) ++result_.leased;
      return;
    }
    if (only_tails) {
      drop_upwards(locked, slot.owner);
    } else {
      drop(locked, at);
    }
  }

  void drop_upwards(CacheLock& locked, EntryNumber number) {
    while (number != kNoEntry) {
      const Entry& entry = locked->store.entry(number);
      if (entry.children > 0) return;
      const EntryNumber parent = entry.parent;
      // A ghost disappears with its last child, and its number is then free.
      const bool more = parent != kNoEntry && locked->store.entry(parent).present();
      const auto slots = entry.slots;
      for (Tier tier : tiers_) {
        const SlotNumber at = slots[index_of(tier)];
        if (at != kNoSlot && !stays(locked->store.record({tier, at}))) drop(locked, {tier, at});
      }
      number = more ? parent : kNoEntry;
    }
  }

  void drop(CacheLock& locked, SlotRef at) {
    locked->store.drop(at, EvictionReason::request);
    ++result_.evicted;
  }

  CacheCore& core_;
  const std::vector<Tier> tiers_;
  EvictResult result_;
};

}  // namespace

void clear_at_once(CacheLock& locked) {
  Clearing(locked.core(), all_tiers(locked.core())).run_at_once(locked);
}

Result<EvictResult> Cache::clear(std::optional<Tier> tier) {
  if (tier) CAIRN_TRY(core_->check_tier(*tier));
  return Clearing(*core_, tier ? std::vector{*tier} : all_tiers(*core_)).run_in_steps();
}

Result<> Cache::erase(KeyView key) {
  const BlockKey block(key);
  return erase_all({&block, 1});
}

Result<> Cache::erase_all(std::span<const BlockKey> blocks) {
  CacheCore& core = *core_;
  CacheLock locked(core, LockUse::evict);
  CAIRN_TRY(locked.check_usable());
  locked->leases.end_overdue(locked);
  std::vector<EntryNumber> present;
  for (const BlockKey& block : blocks) {
    const EntryNumber entry = locked->store.find(block, locked.now());
    if (entry == kNoEntry) continue;
    const auto slots = locked->store.entry(entry).slots;
    for (Tier tier : kTiers) {
      const SlotNumber slot = slots[index_of(tier)];
      if (slot != kNoSlot && locked->store.record({tier, slot}).leases > 0) {
        return Error{ErrorCode::leased, "key " + to_hex(block.view().bytes()) + " is leased"};
      }
    }
    present.push_back(entry);
  }
  if (present.empty()) {
    return Error{ErrorCode::unknown_key, "key " + to_hex(blocks.front().view().bytes()) +
                                             " is not in cache " + core.config.name};
  }
  // From the last one on: the first group's block is the parent of the others.
  for (const EntryNumber entry : std::views::reverse(present)) {
    locked->store.drop_all(entry, EvictionReason::request);
  }
  core.options().failpoint("erase.noted");
  return {};
}

}  // namespace cairn
