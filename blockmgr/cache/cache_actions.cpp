// Cache: what clients ask for blocks that they do not use now: demote, retain, and the counts of
// prefetches. See cache_transfer for prefetches, and cache_pins for pins.
#include <algorithm>
#include <array>
#include <unordered_set>

#include "blockmgr/cache/cache.hpp"
#include "blockmgr/core/cache_core.hpp"

namespace cairn {
namespace {

// Keys looked up under one hold of the lock, some 200 ns each with what follows.
constexpr std::size_t kActionStep = 64;

// Raises the priority of all copies. Returns false if the caller's share did not allow it for one.
bool raise(CacheLock& locked, EntryNumber entry, const RetainRequest& request) {
  BlockStore& store = locked->store;
  const UserNumber user = locked->leases.user_of(request.holder);
  bool fits = true;
  for (const Tier tier : kTiers) {
    const SlotNumber slot = store.entry(entry).slots[index_of(tier)];
    if (slot == kNoSlot) continue;
    const SlotRef at(tier, slot);
    std::uint8_t priority = *request.priority;
    if (priority > kOrdinaryPriority && store.record(at).priority < priority &&
        !store.has_share(at, user)) {
      priority = kOrdinaryPriority;
      fits = false;
    }
    store.raise_priority(at, priority, user);
  }
  return fits;
}

// Chooses the blocks of a demotion, from the last to the first, so that the blocks that follow a
// block are decided before it.
class Demotion {
 public:
  explicit Demotion(const DemoteRequest& request) : request_(request) {}

  void look_at(CacheLock& locked, const BlockKey& key) {
    const EntryNumber entry = locked->store.find(key, locked.now());
    if (entry == kNoEntry) {
      ++result.missing;
      return;
    }
    const SlotRef highest = locked->store.highest_copy(locked->store.entry(entry));
    const auto to = request_.to ? request_.to : locked->store.next_lower(highest.tier());
    if (!to || *to <= highest.tier()) {
      ++result.blocks;  // it is there
      chosen_.insert(entry);
    } else if (locked->pins.is_of_others(request_.holder, entry) ||
               (request_.spares_shared && is_shared(locked, entry))) {
      ++result.spared;
    } else if (result.blocks >= request_.max_blocks) {
      ++result.beyond;
    } else {
      ++result.blocks;
      chosen_.insert(entry);
      keys[index_of(*to)].push_back(key);
    }
  }

  DemoteStart result;
  std::array<std::vector<BlockKey>, kNumTiers> keys;  // by tier to move to, from the last on

 private:
  // More children than this, and one of them is most likely another conversation's.
  static constexpr std::uint32_t kMaxChildren = 16;

  bool is_shared(CacheLock& locked, EntryNumber number) const {
    const BlockStore& store = locked->store;
    const Entry& entry = store.entry(number);
    if (entry.user != locked->leases.user_of(request_.holder) || entry.user == kSeveralUsers) {
      return true;
    }
    if (entry.children > kMaxChildren) return true;
    for (EntryNumber child = store.details(number).first_child; child != kNoEntry;
         child = store.details(child).next_sibling) {
      if (!chosen_.contains(child)) return true;
    }
    return false;
  }

  const DemoteRequest& request_;
  std::unordered_set<EntryNumber> chosen_;
};

}  // namespace

Result<DemoteStart> Cache::demote(const DemoteRequest& request) {
  CacheCore& core = *core_;
  if (request.to) CAIRN_TRY(core.check_tier(*request.to));
  CAIRN_TRY(core.check_count(request.keys.size()));
  Demotion demotion(request);
  {
    CacheLock locked(core, LockUse::transfer);
    locked->pins.end_overdue(locked);
    for (std::size_t i = 0; i < request.keys.size(); ++i) {
      if (i > 0 && i % kActionStep == 0) locked.yield();
      CAIRN_TRY(locked.check_usable());
      demotion.look_at(locked, request.keys[request.keys.size() - 1 - i]);
    }
  }
  for (Tier to : kTiers) {
    std::vector<BlockKey>& keys = demotion.keys[index_of(to)];
    if (keys.empty()) continue;
    const std::uint64_t blocks = keys.size();
    std::ranges::reverse(keys);
    auto id = transfer({.keys = std::move(keys),
                        .to = to,
                        .move = true,
                        .priority = request.priority,
                        .quota = request.quota,
                        .pins = request.pins});
    if (id) {
      demotion.result.transfers.push_back(*id);
    } else {
      demotion.result.blocks -= blocks;
      demotion.result.error = id.error();
    }
  }
  return std::move(demotion.result);
}

Result<RetainResult> Cache::retain(const RetainRequest& request) {
  CacheCore& core = *core_;
  CAIRN_TRY(core.check_count(request.keys.size()));
  RetainResult result;
  {
    CacheLock locked(core, LockUse::lease);
    const std::chrono::milliseconds ttl(request.ttl_ms);
    for (std::size_t i = 0; i < request.keys.size(); ++i) {
      if (i > 0 && i % kActionStep == 0) locked.yield();
      CAIRN_TRY(locked.check_usable());
      const EntryNumber entry = locked->store.find(request.keys[i], locked.now());
      if (entry == kNoEntry) {
        ++result.missing;
        continue;
      }
      ++result.blocks;
      if (request.priority && !raise(locked, entry, request)) ++result.budget;
      locked->store.extend_ttl(entry, locked.now() + ttl);
    }
  }
  const std::vector<KeyView> keys(request.keys.begin(), request.keys.end());
  // A hint for a later time would let them go first.
  const ReuseHint again{.kind = ReuseHint::Kind::within,
                        .within_ms = std::min<std::uint64_t>(request.ttl_ms, kLongestExpectedMs)};
  CAIRN_TRY(hint({.keys = keys, .reuse = again, .holder = request.holder}));
  return result;
}

void Cache::count_action(ActionType type, ActionOutcome outcome) {
  CacheLock locked(*core_, LockUse::upkeep);
  ++locked->counts.actions[static_cast<std::size_t>(type)][static_cast<std::size_t>(outcome)];
}

void Cache::count_prefetch_missing(std::uint64_t keys) {
  CacheLock locked(*core_, LockUse::upkeep);
  locked->store.count_prefetched(PrefetchResult::missing, keys);
}

void Cache::count_as_used_again(std::span<const BlockKey> keys) {
  CacheLock locked(*core_, LockUse::upkeep);
  for (std::size_t i = 0; i < keys.size() && !locked->dropped; ++i) {
    if (i > 0 && i % kActionStep == 0) locked.yield();
    const EntryNumber entry = locked->store.find(keys[i], locked.now());
    if (entry == kNoEntry) continue;
    locked->store.record(locked->store.highest_copy(locked->store.entry(entry))).used_again = true;
  }
}

void Cache::note_prefetched(std::span<const BlockKey> keys, const LeaseHolder& holder) {
  CacheLock locked(*core_, LockUse::upkeep);
  const UserNumber user = locked->leases.user_of(holder);
  for (std::size_t i = 0; i < keys.size() && !locked->dropped; ++i) {
    if (i > 0 && i % kActionStep == 0) locked.yield();
    const EntryNumber entry = locked->store.find(keys[i], locked.now());
    if (entry == kNoEntry) continue;
    const SlotRef at = locked->store.highest_copy(locked->store.entry(entry));
    if (locked->store.record(at).used_again) {
      locked->store.count_prefetched(PrefetchResult::used, 1);  // between its arrival and now
    } else {
      locked->store.set_prefetched(at, user);
    }
  }
}

}  // namespace cairn
