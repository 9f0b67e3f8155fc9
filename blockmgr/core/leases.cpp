#include "blockmgr/core/leases.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "base/assert.hpp"
#include "blockmgr/core/cache_core.hpp"

namespace cairn {
namespace {

// Pins released under one hold of the lock: some 30 ns each.
constexpr std::size_t kReleaseStep = 128;
// The cost of ending a lease, in pins.
constexpr std::size_t kEndCost = 8;
// Sorting 65,536 blocks of a lease takes some milliseconds without the lock. If others change the
// lease each time, the last attempt holds the lock.
constexpr int kMaxArrangements = 4;

bool ends_with(std::span<const SlotRef> held, std::span<const SlotRef> slots) {
  return held.size() >= slots.size() && std::ranges::equal(held.last(slots.size()), slots);
}

// Returns `held` with `slots` at its end, each as often as it is named. nullopt if some are
// missing.
std::optional<std::vector<SlotRef>> with_last(std::vector<SlotRef> held,
                                              std::span<const SlotRef> slots) {
  struct Named {
    SlotRef at;
    std::uint32_t times = 0;
  };
  std::vector<SlotRef> sorted(slots.begin(), slots.end());
  std::ranges::sort(sorted);
  std::vector<Named> named;
  for (const SlotRef at : sorted) {
    if (named.empty() || named.back().at != at) named.push_back({at, 0});
    ++named.back().times;
  }
  const auto is_named = [&named](SlotRef at) {
    const auto found = std::ranges::lower_bound(named, at, {}, &Named::at);
    if (found == named.end() || found->at != at || found->times == 0) return false;
    --found->times;
    return true;
  };
  if (std::erase_if(held, is_named) != slots.size()) return std::nullopt;
  held.insert(held.end(), slots.begin(), slots.end());
  return held;
}

}  // namespace

Error being_committed(SlotRef at) {
  return {ErrorCode::state_conflict, "slot " + std::to_string(at.slot()) + " of tier " +
                                         std::string(to_string(at.tier())) + " is being committed"};
}

// Unpins the last block of a prefix first: it becomes the least recently used, so the prefix is
// evicted from its end.
void Leases::release_last(CacheLock& locked, Releasing& lease, std::size_t count) {
  for (; count > 0; --count) {
    const SlotRef at = lease.held.back();
    locked->writes.erase_unless_busy(at);
    if (!locked->partials.empty()) locked->partials.remove(at);
    // If another lease holds the block too, its user has not given a hint.
    if (lease.use_hint.next_use != NextUse::unknown && locked->store.record(at).leases == 1) {
      locked->store.hint(at, lease.use_hint);
    }
    locked->store.unpin_for_lease(at);
    lease.held.pop_back();
  }
}

Result<> Leases::check_room() const {
  if (!table_.full()) return {};
  return Error{ErrorCode::too_many,
               std::to_string(table_.size()) + " leases are open, which is the limit"};
}

LeaseNumber Leases::open(Terms terms) {
  const UserNumber user = user_of(terms.holder);
  const LeaseNumber number = table_.open(terms.expires_at, std::move(terms.holder));
  table_[number].user = user;
  table_[number].hinted = terms.hinted;
  table_[number].quota = std::move(terms.quota);
  table_[number].pins = std::move(terms.pins);
  return number;
}

Result<LeaseNumber> Leases::live(CacheLock& locked, const LeaseId& id) {
  CAIRN_TRY(locked.check_usable());
  expire_step(locked);
  auto lease = table_.find(id);
  // The step has not reached this lease.
  if (lease && table_[*lease].expires_at <= locked.now()) {
    end(locked, *lease, true);
    return table_.find(id);
  }
  return lease;
}

std::optional<LeaseNumber> Leases::find(const LeaseId& id) const {
  auto found = table_.find(id);
  return found ? std::optional(*found) : std::nullopt;
}

void Leases::end(CacheLock& locked, LeaseNumber lease, bool expired) {
  Lease& ending = table_[lease];
  Releasing releasing{.held = std::exchange(ending.held, {}),
                      .use_hint = {.next_use = ending.hinted, .user = ending.user}};
  if (ending.hinted != NextUse::unknown) {
    locked->store.end_request(releasing.held, {.next_use = ending.hinted});
  }
  table_.close(lease, expired);
  if (expired) ++expirations_;
  if (releasing_.empty() && releasing.held.size() <= kReleaseStep) {
    release_last(locked, releasing, releasing.held.size());
  } else {
    releasing_.push_back(std::move(releasing));
  }
}

void Leases::release_step(CacheLock& locked) {
  std::size_t left = kReleaseStep;
  while (left > 0 && !releasing_.empty()) {
    Releasing& lease = releasing_.front();
    const std::size_t step = std::min(left, lease.held.size());
    release_last(locked, lease, step);
    left -= step;
    if (lease.held.empty()) releasing_.pop_front();
  }
}

void Leases::finish_releases(CacheLock& locked) {
  while (!releasing_.empty()) {
    release_step(locked);
    if (!releasing_.empty()) locked.yield();
  }
}

bool Leases::end_step(CacheLock& locked, TimePoint overdue_at, bool expired) {
  std::size_t left = kReleaseStep;
  while (auto lease = table_.overdue(overdue_at)) {
    if (left == 0) return false;
    left -= std::min(left, kEndCost + table_[*lease].held.size());
    end(locked, *lease, expired);
  }
  return true;
}

bool Leases::expire_step(CacheLock& locked) { return end_step(locked, locked.now(), true); }

void Leases::end_overdue(CacheLock& locked) {
  while (!expire_step(locked)) locked.yield();
  finish_releases(locked);
}

void Leases::end_all(CacheLock& locked) {
  while (!end_step(locked, TimePoint::max(), false)) locked.yield();
}

void Leases::add(LeaseNumber lease, std::span<const SlotRef> slots) {
  auto& held = table_[lease].held;
  held.insert(held.end(), slots.begin(), slots.end());
  table_.count(lease);
}

Result<LeaseNumber> Leases::bring_to_end(CacheLock& locked, const LeaseId& id,
                                         std::span<const SlotRef> slots) {
  std::vector<SlotRef> before;
  std::optional<std::vector<SlotRef>> arranged;
  const auto arrange = [&] { arranged = with_last(std::move(before), slots); };
  for (int attempt = 0;; ++attempt) {
    auto lease = table_.find(id);
    if (!lease) return lease;
    const Lease& held = table_[*lease];
    if (ends_with(held.held, slots)) return lease;
    before = held.held;
    if (before.size() <= kReleaseStep || attempt == kMaxArrangements) {
      arrange();
    } else {
      const std::uint64_t changes = held.changes;
      locked.aside(arrange);
      lease = table_.find(id);
      if (!lease) return lease;
      if (table_[*lease].changes != changes) continue;
    }
    if (!arranged) {
      return Error{ErrorCode::foreign_lease, "the lease does not hold all of these blocks"};
    }
    table_[*lease].held.swap(*arranged);
    return lease;
  }
}

Result<> Leases::part_with(CacheLock& locked, const Parting& parting,
                           std::span<const SlotRef> slots) {
  auto from = bring_to_end(locked, parting.from, slots);
  while (true) {
    if (!from) return from.error();
    const auto step = slots.last(std::min(slots.size(), kReleaseStep));
    CAIRN_TRY(check_parting(locked, parting, step));
    Lease& giving = table_[*from];
    giving.held.resize(giving.held.size() - step.size());
    table_.count(*from);
    if (parting.to) {
      hand_over(locked, {.from = *from, .to = *table_.find(*parting.to)}, step);
    } else {
      Releasing releasing{.held = {step.begin(), step.end()},
                          .use_hint = {.next_use = giving.hinted, .user = giving.user}};
      release_last(locked, releasing, step.size());
    }
    slots = slots.first(slots.size() - step.size());
    if (slots.empty()) return {};
    locked.yield();
    from = table_.find(parting.from);
    // Slots that others have added come after the remaining ones.
    const auto next = slots.last(std::min(slots.size(), kReleaseStep));
    if (from && !ends_with(table_[*from].held, next)) {
      from = bring_to_end(locked, parting.from, slots);
    }
  }
}

Result<> Leases::check_parting(CacheLock& locked, const Parting& parting,
                               std::span<const SlotRef> slots) const {
  if (parting.to) {
    const auto to = table_.find(*parting.to);
    if (!to) return to.error();
  }
  for (const SlotRef at : slots) {
    SlotRecord& slot = locked->store.record(at);
    if (parting.is_commits) slot.committing = false;
    if (slot.committing) return being_committed(at);
  }
  return {};
}

void Leases::hand_over(CacheLock& locked, Handover leases, std::span<const SlotRef> slots) {
  for (const SlotRef at : slots) {
    SlotRecord& slot = locked->store.record(at);
    if (slot.life != SlotLife::allocated || slot.owner != leases.from) continue;
    slot.owner = leases.to;
    if (table_[leases.to].quota == nullptr) table_[leases.to].quota = table_[leases.from].quota;
  }
  add(leases.to, slots);
}

Result<> Leases::check_pins(const LeaseQuota* pins, std::uint64_t more) {
  if (pins == nullptr || pins->fits(more)) return {};
  return pins->refusal(more);
}

Result<> Leases::check_held(CacheLock& locked, std::uint64_t more) const {
  const CacheCore& core = locked.core();
  const std::uint64_t held = locked->store.lease_pins();
  const auto& quota = core.settings->quota.max_leased_blocks;
  if (quota && held + more > *quota) {
    return Error{ErrorCode::lease_quota,
                 "leases of cache " + core.config.name + " hold " + std::to_string(held) +
                     " blocks, and " + std::to_string(more) + " more would be over its quota of " +
                     std::to_string(*quota) + "; release some, or let them end"};
  }
  const std::uint64_t most = core.options().max_held_blocks;
  if (held == 0 || held + more <= most) return {};
  return Error{ErrorCode::too_many, "leases hold " + std::to_string(held) + " blocks, and " +
                                        std::to_string(more) + " more would be over the limit of " +
                                        std::to_string(most)};
}

namespace {

std::string name_of(const BlockHandle& handle) {
  return "slot " + std::to_string(handle.slot) + " of tier " + std::string(to_string(handle.tier));
}

Error stale(const BlockHandle& handle, const SlotRecord& slot) {
  return {ErrorCode::stale_generation, name_of(handle) + " is at generation " +
                                           std::to_string(slot.generation) + ", not " +
                                           std::to_string(handle.generation)};
}

}  // namespace

Result<SlotRef> Leases::named(CacheLock& locked, const BlockHandle& handle) {
  CAIRN_TRY(locked.core().check_tier(handle.tier));
  if (!locked->store.pool(handle.tier).exists(handle.slot)) {
    return Error{ErrorCode::unknown_slot, "there is no " + name_of(handle)};
  }
  const SlotRef at(handle.tier, handle.slot);
  const SlotRecord& slot = locked->store.record(at);
  if (slot.generation != handle.generation || slot.life == SlotLife::free) {
    return stale(handle, slot);
  }
  if (locked->store.kv_group(at) != handle.kv_group) {
    return Error{ErrorCode::unknown_slot, name_of(handle) + " holds a block of another KV group"};
  }
  return at;
}

Result<SlotRef> Leases::uncommitted(CacheLock& locked, LeaseNumber lease,
                                    const BlockHandle& handle) const {
  const auto at = named(locked, handle);
  if (!at) return at;
  const SlotRecord& slot = locked->store.record(*at);
  if (slot.gone) return stale(handle, slot);
  if (slot.life == SlotLife::committed) {
    return Error{ErrorCode::state_conflict,
                 name_of(handle) + " is committed: its bytes no longer change"};
  }
  if (slot.owner != lease) {
    return Error{ErrorCode::foreign_lease, name_of(handle) + " does not belong to this lease"};
  }
  if (slot.committing) {
    return Error{ErrorCode::state_conflict, name_of(handle) + " is being committed"};
  }
  return at;
}

}  // namespace cairn
