// Cache: finding keys.
#include <algorithm>
#include <string>

#include "blockmgr/cache/cache.hpp"
#include "blockmgr/cache/match_steps.hpp"
#include "blockmgr/core/cache_core.hpp"

namespace cairn {
namespace {

// Reserved for the blocks of a match; a longer one grows its list.
constexpr std::size_t kReservedBlocks = 1024;
// Returns the next step of keys after the first `done`.
std::span<const KeyView> step_of(std::span<const KeyView> keys, std::size_t done) {
  return keys.subspan(done, std::min(kStepKeys, keys.size() - done));
}

// One match, from its first step to its last. Blocks that a step found stay in the result: they are
// pinned, or were present when looked up.
class Matching {
 public:
  struct Terms {
    std::uint32_t lease_ms = 0;  // 0: nothing is pinned
    const std::shared_ptr<LeaseQuota>& pins;
    const LeaseHolder& holder;
    const RequestHint& hint;
  };
  Matching(CacheLock& locked, const Terms& terms, MatchResult& out)
      : locked_(locked), terms_(terms), user_(locked->leases.user_of(terms.holder)), out_(out) {}

  // Indexes of found keys that many blocks follow.
  const std::vector<std::uint32_t>& hubs() const { return hubs_; }
  UserNumber user() const { return user_; }

  Result<> run(std::span<const KeyView> keys) {
    // Count step by step only if not all of the keys would fit.
    limited_ = terms_.lease_ms > 0 && !may_hold(keys.size());
    request_ = locked_->store.begin_match(keys);
    for (std::size_t done = 0; done < keys.size();) {
      if (done > 0) {
        locked_.yield();
        CAIRN_TRY(locked_.check_usable());
      }
      const auto step = step_of(keys, done);
      auto found = limited_ ? count_and_take(step) : take(step);
      if (!found) {
        if (lease_) locked_->leases.end(locked_, *lease_, false);
        locked_->leases.finish_releases(locked_);
        out_.blocks.clear();
        return std::move(found).error();
      }
      done += step.size();
      if (*found < step.size()) break;
    }
    if (out_.blocks.size() < keys.size() && is_of_one_group()) {
      locked_->store.missed(keys[out_.blocks.size()], request_);
    }
    end_lease();
    if (names_session()) {
      locked_->sessions.add({terms_.holder, terms_.hint.session},
                            {session_blocks_, locked_.unix_ms()});
    }
    for (Tier tier : kTiers) locked_->counts.hits[index_of(tier)] += hits_[index_of(tier)];
    return {};
  }

 private:
  // The order of eviction learns from matches of all groups together.
  bool is_of_one_group() const { return locked_.core().config.kv_groups.empty(); }
  bool names_session() const { return !terms_.hint.session.empty(); }
  Result<> may_hold(std::uint64_t blocks) const {
    CAIRN_TRY(locked_->leases.check_held(locked_, blocks));
    return Leases::check_pins(terms_.pins.get(), blocks);
  }

  // Pins the present keys of the step, or nothing if they exceed the quota.
  Result<std::uint64_t> count_and_take(std::span<const KeyView> keys) {
    const auto miss = std::ranges::find_if(keys, [this](const KeyView& key) {
      return locked_->store.find(key, locked_.now()) == kNoEntry;
    });
    const auto present = static_cast<std::size_t>(miss - keys.begin());
    CAIRN_TRY(may_hold(present));
    return take(keys.first(present));
  }

  Result<std::uint64_t> take(std::span<const KeyView> keys) {
    BlockStore& store = locked_->store;
    const std::size_t before = out_.blocks.size();
    BlockStore::PrefixScan scan(store, keys, locked_.now());
    std::span<const SlotRef> ahead = scan.next();
    if (terms_.lease_ms > 0 && !ahead.empty() && !lease_) {
      CAIRN_TRY(locked_->leases.check_room());
      lease_ = locked_->leases.open({.expires_at = Leases::kNotYet,
                                     .holder = terms_.holder,
                                     .pins = terms_.pins,
                                     .hinted = terms_.hint.reuse.next_use()});
    }
    while (!ahead.empty()) {
      const std::span<const SlotRef> found = ahead;
      ahead = scan.next();
      if (lease_) {
        for (const SlotRef at : found) store.pool(at.tier()).prefetch_neighbours(at.slot());
      }
      for (const SlotRef at : found) {
        if (lease_) store.pin_for_lease(at);
        store.used(at, user_);
        locked_->pins.hit(locked_, store.record(at).owner);
        if (names_session()) session_blocks_.push_back(store.trail(store.record(at).owner));
        const bool is_hub = store.is_hub(at);
        store.found(at, request_, is_hub);
        if (is_hub) hubs_.push_back(static_cast<std::uint32_t>(out_.blocks.size()));
        out_.blocks.push_back(store.handle(at));
        ++hits_[index_of(at.tier())];
      }
      if (lease_) locked_->leases.add(*lease_, found);
    }
    return out_.blocks.size() - before;
  }

  void end_lease() {
    if (!lease_) return;
    const std::chrono::milliseconds duration(terms_.lease_ms);
    locked_->leases.renew(*lease_, locked_.now() + duration);
    out_.lease = locked_->leases[*lease_].id;
    out_.expires_at_unix_ms = locked_.unix_ms() + terms_.lease_ms;
  }

  CacheLock& locked_;
  const Terms& terms_;
  const UserNumber user_;
  MatchResult& out_;
  bool limited_ = false;
  RequestNumber request_ = 0;
  std::optional<LeaseNumber> lease_;
  std::array<std::uint64_t, kNumTiers> hits_{};
  std::vector<std::uint32_t> hubs_;
  std::vector<BlockStore::Trail> session_blocks_;
};

}  // namespace

void touch_from_end(CacheLock& locked, std::span<const BlockHandle> blocks,
                    BlockStore::UseHint use_hint) {
  const bool hints = use_hint.next_use != NextUse::unknown;
  const RequestNumber hint = hints ? locked->store.begin_hint(use_hint.next_use) : 0;
  std::size_t touched = 0;
  for (auto block = blocks.rbegin(); block != blocks.rend(); ++block) {
    if (touched++ == kStepKeys) {
      locked.yield();
      touched = 1;
    }
    const SlotRef at(block->tier, block->slot);
    const SlotPool& pool = locked->store.pool(at.tier());
    if (at.slot() >= pool.end()) continue;
    const SlotRecord& slot = pool[at.slot()];
    const bool is_there =
        slot.generation == block->generation && slot.life == SlotLife::committed && !slot.gone;
    if (is_there) locked->store.touch(at);
    if (is_there && hints) locked->store.hint_now(at, use_hint, hint);
  }
}

Result<> Cache::match(std::span<const KeyView> keys, std::optional<std::uint32_t> lease_ms,
                      MatchResult& out, const std::shared_ptr<LeaseQuota>& pins,
                      const LeaseHolder& holder, const RequestHint& hint) {
  CacheCore& core = *core_;
  out.blocks.clear();
  out.lease.reset();
  out.expires_at_unix_ms = 0;
  CAIRN_TRY(core.check_count(keys.size()));
  std::uint32_t duration_ms = 0;
  if (lease_ms != 0) {
    auto checked = core.lease_duration_ms(lease_ms);
    if (!checked) return std::move(checked).error();
    duration_ms = *checked;
  }
  out.blocks.reserve(std::min(keys.size(), kReservedBlocks));

  std::vector<std::uint32_t> hubs;
  std::int64_t unix_ms = 0;
  {
    CacheLock locked(core, LockUse::match);
    CAIRN_TRY(locked.check_usable());
    locked->leases.end_overdue(locked);
    if (duration_ms > 0) CAIRN_TRY(locked->leases.check_room());
    const Matching::Terms terms{
        .lease_ms = duration_ms, .pins = pins, .holder = holder, .hint = hint};
    Matching matching(locked, terms, out);
    CAIRN_TRY(matching.run(keys));
    if (duration_ms == 0) {
      touch_from_end(locked, out.blocks,
                     {.next_use = hint.reuse.next_use(), .user = matching.user()});
    }
    ++locked->counts.matches;
    locked->counts.count(hint.reuse);
    // With a shared tier, count_beyond() counts the misses.
    if (!core.config.shared) locked->counts.misses += keys.size() - out.blocks.size();
    hubs = matching.hubs();
    unix_ms = locked.unix_ms();
  }
  if (!core.config.kv_groups.empty()) return {};
  core.reuse.matched({.keys = keys,
                      .hubs = hubs,
                      .unix_ms = unix_ms,
                      .only_looks = duration_ms == 0,
                      .found = out.blocks.size(),
                      .lease = out.lease});
  return {};
}

void Cache::count_beyond(const Beyond& beyond) {
  CacheLock locked(*core_, LockUse::match);
  locked->counts.remote_hits += beyond.remote_blocks;
  locked->counts.misses += beyond.missed_blocks;
}

Result<Cache::Held> Cache::hold(std::span<const KeyView> keys, const HoldTerms& terms) {
  CacheCore& core = *core_;
  const auto duration_ms = core.lease_duration_ms(terms.lease_ms);
  if (!duration_ms) return duration_ms.error();
  CacheLock locked(core, LockUse::transfer);
  CAIRN_TRY(locked.check_usable());
  locked->leases.end_overdue(locked);
  CAIRN_TRY(locked->leases.check_held(locked, keys.size()));
  CAIRN_TRY(Leases::check_pins(terms.pins.get(), keys.size()));
  std::optional<LeaseNumber> lease;
  if (terms.lease) {
    auto live = locked->leases.live(locked, *terms.lease);
    if (!live) return std::move(live).error();
    lease = *live;
    locked->leases.renew(*lease, locked.now() + std::chrono::milliseconds(*duration_ms));
  }
  const UserNumber user = locked->leases.user_of(terms.holder);
  std::vector<BlockStore::Trail> session_blocks;
  Held held{.blocks = std::vector<std::optional<BlockHandle>>(keys.size()), .lease = terms.lease};
  std::array<SlotRef, kStepKeys> found;
  for (std::size_t done = 0; done < keys.size();) {
    const auto step = step_of(keys, done);
    locked->store.prefetch(step);
    std::size_t count = 0;
    for (std::size_t i = 0; i < step.size(); ++i) {
      const EntryNumber entry = locked->store.find(step[i], locked.now());
      if (entry == kNoEntry) continue;
      const SlotRef at = locked->store.highest_copy(locked->store.entry(entry));
      locked->store.pin_for_lease(at);
      locked->store.used(at, user);
      if (!terms.hint.session.empty()) session_blocks.push_back(locked->store.trail(entry));
      found[count++] = at;
      held.blocks[done + i] = locked->store.handle(at);
    }
    if (count > 0 && !lease) {
      if (auto room = locked->leases.check_room(); !room) {
        while (count > 0) locked->store.unpin_for_lease(found[--count]);
        return std::move(room).error();
      }
      lease = locked->leases.open({.expires_at = Leases::kNotYet,
                                   .holder = terms.holder,
                                   .pins = terms.pins,
                                   .hinted = terms.hint.reuse.next_use()});
      held.lease = locked->leases[*lease].id;
    }
    if (lease) locked->leases.add(*lease, std::span(found).first(count));
    done += step.size();
    if (done == keys.size()) break;
    locked.yield();
    CAIRN_TRY(locked.check_usable());
    // The lease may have ended meanwhile.
    if (terms.lease && !locked->leases.find(*terms.lease)) {
      return locked->leases.live(locked, *terms.lease).error();
    }
  }
  if (lease) {
    locked->leases.renew(*lease, locked.now() + std::chrono::milliseconds(*duration_ms));
    held.expires_at_unix_ms = locked.unix_ms() + *duration_ms;
  }
  if (!session_blocks.empty()) {
    locked->sessions.add({terms.holder, terms.hint.session}, {session_blocks, locked.unix_ms()});
  }
  return held;
}

std::optional<BlockKey> Cache::parent(KeyView key) const {
  CacheLock locked(*core_, LockUse::look);
  if (locked->dropped) return std::nullopt;
  const EntryNumber entry = locked->store.find(key, locked.now());
  if (entry == kNoEntry) return std::nullopt;
  return locked->store.key_before(entry);
}

std::vector<bool> Cache::contains(std::span<const KeyView> keys) const {
  std::vector<bool> present(keys.size());
  CacheLock locked(*core_, LockUse::look);
  for (std::size_t done = 0; done < keys.size() && !locked->dropped;) {
    const auto step = step_of(keys, done);
    locked->store.prefetch(step);
    for (std::size_t i = 0; i < step.size(); ++i) {
      present[done + i] = locked->store.contains(step[i], locked.now());
    }
    done += step.size();
    if (done < keys.size()) locked.yield();
  }
  return present;
}

}  // namespace cairn
