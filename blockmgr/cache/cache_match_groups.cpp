// Cache: finding keys in a cache of several KV groups.
#include <algorithm>
#include <string>

#include "blockmgr/cache/cache.hpp"
#include "blockmgr/cache/match_steps.hpp"
#include "blockmgr/core/cache_core.hpp"

namespace cairn {
namespace {

// A block that was found may be gone when it is pinned, because the lock is released in between.
// Then the prefix is searched again, this often at most.
constexpr int kMaxTries = 4;

// How far a prefix reaches in one full group.
struct FullReach {
  std::uint64_t keys = 0;       // of whole blocks, or that the caller has
  std::uint64_t first_run = 0;  // the first block that is needed
  std::vector<bool> tails;      // the tail of keys + 1 + i is present
};

// One match, from its first step to its last.
class GroupMatching {
 public:
  struct Terms {
    const GroupMatchRequest& request;
    std::uint32_t lease_ms = 0;  // 0: nothing is pinned
  };
  GroupMatching(CacheLock& locked, const Terms& terms, GroupMatch& out)
      : locked_(locked),
        config_(locked.core().config),
        keys_(terms.request.keys),
        terms_(terms),
        user_(locked->leases.user_of(terms.request.holder)),
        out_(out) {}

  Result<> run() {
    for (int tries = 0; tries < kMaxTries; ++tries) {
      CAIRN_TRY(look());
      plan();
      auto pinned = pin_planned();
      if (!pinned) return std::move(pinned).error();
      if (*pinned) return {};
    }
    out_.matched = 0;
    out_.blocks.clear();
    return {};
  }

  UserNumber user() const { return user_; }
  const std::vector<std::uint32_t>& hubs() const { return hubs_; }

 private:
  static constexpr std::uint8_t kUnknown = 0;
  static constexpr std::uint8_t kAbsent = 1;
  static constexpr std::uint8_t kPresent = 2;

  std::uint64_t keys_per_block(KvGroupNumber group) const {
    return config_.shape_of(group).page_size / config_.tokens_per_key();
  }
  KvGroupNumber groups() const { return static_cast<KvGroupNumber>(config_.kv_group_count()); }

  // Releases the lock now and then. Error: unknown_cache.
  Result<> step() {
    if (++steps_ % kStepKeys != 0) return {};
    locked_.yield();
    return locked_.check_usable();
  }

  // Whether the block is present. Asks the index once for each block of a try.
  Result<bool> present(KvGroupNumber group, std::uint64_t key) {
    std::vector<std::uint8_t>& known = known_[group];
    if (known.size() <= key) known.resize(keys_.size(), kUnknown);
    if (known[key] == kUnknown) {
      CAIRN_TRY(step());
      const bool is_there = locked_->store.find(keys_[key].in(group), locked_.now()) != kNoEntry;
      known[key] = is_there ? kPresent : kAbsent;
    }
    return known[key] == kPresent;
  }

  Result<> look() {
    known_.assign(groups(), {});
    CAIRN_TRY(look_at_full_groups());
    std::uint64_t n = full_matched();
    out_.full_matched = static_cast<std::uint32_t>(n);
    while (n > 0) {
      auto shorter = next_candidate(n);
      if (!shorter) return std::move(shorter).error();
      if (*shorter == n) break;
      n = *shorter;
    }
    out_.matched = static_cast<std::uint32_t>(n);
    return {};
  }

  Result<> look_at_full_groups() {
    full_.assign(groups(), {});
    for (KvGroupNumber group = 0; group < groups(); ++group) {
      if (config_.kind_of(group) != KvGroupKind::full) continue;
      const std::uint64_t per_block = keys_per_block(group);
      const std::uint64_t have = std::min<std::uint64_t>(terms_.request.have, keys_.size());
      FullReach& reach = full_[group];
      reach.first_run = have / per_block;
      std::uint64_t run = reach.first_run;
      for (; (run + 1) * per_block <= keys_.size(); ++run) {
        const auto is_there = present(group, (run + 1) * per_block - 1);
        if (!is_there) return is_there.error();
        if (!*is_there) break;
      }
      reach.keys = std::max(run * per_block, have);
      const std::uint64_t end = std::min<std::uint64_t>((run + 1) * per_block - 1, keys_.size());
      for (std::uint64_t n = reach.keys + 1; n <= end; ++n) {
        const auto is_there = present(group, n - 1);
        if (!is_there) return is_there.error();
        reach.tails.push_back(*is_there);
      }
    }
    return {};
  }

  bool full_groups_reach(std::uint64_t n) const {
    for (KvGroupNumber group = 0; group < groups(); ++group) {
      if (config_.kind_of(group) != KvGroupKind::full) continue;
      const FullReach& reach = full_[group];
      const bool by_tail =
          n > reach.keys && n - reach.keys <= reach.tails.size() && reach.tails[n - reach.keys - 1];
      if (n > reach.keys && !by_tail) return false;
    }
    return true;
  }

  std::uint64_t full_matched() const {
    std::uint64_t n = keys_.size();
    while (n > 0 && !full_groups_reach(n)) --n;
    return n;
  }

  // Returns n if all groups can serve it, else a smaller one; all between cannot be served.
  Result<std::uint64_t> next_candidate(std::uint64_t n) {
    if (!full_groups_reach(n)) return n - 1;
    // States first, because they need one look-up each.
    for (KvGroupNumber group = 0; group < groups(); ++group) {
      if (config_.kind_of(group) != KvGroupKind::state) continue;
      const auto is_there = present(group, n - 1);
      if (!is_there) return is_there.error();
      if (!*is_there) return n - 1;
    }
    for (KvGroupNumber group = 0; group < groups(); ++group) {
      if (config_.kind_of(group) == KvGroupKind::window) {
        const std::uint64_t per_block = keys_per_block(group);
        // From the last block on: a smaller n needs a missing one too, until it ends before it.
        for (std::uint64_t run = runs_to(group, n); run-- > first_run_of_window(group, n);) {
          const std::uint64_t last_key = (run + 1) * per_block - 1;
          auto is_there = last_key < keys_.size() ? present(group, last_key) : Result<bool>(false);
          if (!is_there) return std::move(is_there).error();
          if (!*is_there) return run * per_block;
        }
      }
    }
    return n;
  }

  // The number of blocks that hold n keys.
  std::uint64_t runs_to(KvGroupNumber group, std::uint64_t n) const {
    const std::uint64_t per_block = keys_per_block(group);
    return (n + per_block - 1) / per_block;
  }
  std::uint64_t first_run_of_window(KvGroupNumber group, std::uint64_t n) const {
    const std::uint64_t tokens = n * config_.tokens_per_key();
    const std::uint64_t window = config_.kv_groups[group].window_tokens - 1;
    if (window == 0) return runs_to(group, n);
    const std::uint64_t first_token = tokens - std::min(tokens, window);
    return first_token / config_.shape_of(group).page_size;
  }

  // Lists the blocks that `matched` needs.
  void plan() {
    planned_.clear();
    const std::uint64_t n = out_.matched;
    if (n == 0) return;
    const auto add = [this](KvGroupNumber group, std::uint64_t key) {
      planned_.push_back({static_cast<std::uint32_t>(key), group});
    };
    for (KvGroupNumber group = 0; group < groups(); ++group) {
      const std::uint64_t per_block = keys_per_block(group);
      switch (config_.kind_of(group)) {
        case KvGroupKind::full: {
          const FullReach& reach = full_[group];
          const bool by_tail = n > reach.keys;
          const std::uint64_t end = by_tail ? n / per_block : runs_to(group, n);
          for (std::uint64_t run = reach.first_run; run < end && n > terms_.request.have; ++run) {
            add(group, (run + 1) * per_block - 1);
          }
          if (by_tail) add(group, n - 1);
          break;
        }
        case KvGroupKind::window:
          for (std::uint64_t run = first_run_of_window(group, n); run < runs_to(group, n); ++run) {
            add(group, (run + 1) * per_block - 1);
          }
          break;
        case KvGroupKind::state:
          add(group, n - 1);
          break;
      }
    }
  }

  // Returns false, with nothing pinned, if a block is gone.
  Result<bool> pin_planned() {
    if (planned_.empty()) {
      end();
      return true;
    }
    if (terms_.lease_ms > 0) {
      CAIRN_TRY(locked_->leases.check_held(locked_, planned_.size()));
      CAIRN_TRY(Leases::check_pins(terms_.request.pins.get(), planned_.size()));
      CAIRN_TRY(locked_->leases.check_room());
      lease_ = locked_->leases.open({.expires_at = Leases::kNotYet,
                                     .holder = terms_.request.holder,
                                     .pins = terms_.request.pins,
                                     .hinted = terms_.request.hint.reuse.next_use()});
    }
    found_.clear();
    for (const Planned& planned : planned_) {
      if (auto usable = step(); !usable) {
        lease_.reset();  // the removal of the cache has ended it
        return std::move(usable).error();
      }
      const EntryNumber entry =
          locked_->store.find(keys_[planned.key].in(planned.group), locked_.now());
      if (entry == kNoEntry) {
        give_up();
        return false;
      }
      const SlotRef at = locked_->store.highest_copy(locked_->store.entry(entry));
      if (lease_) {
        locked_->store.pin_for_lease(at);
        locked_->leases.add(*lease_, std::span(&at, 1));
      }
      found_.push_back(locked_->store.handle(at));
    }
    end();
    return true;
  }

  void give_up() {
    if (lease_) locked_->leases.end(locked_, *lease_, false);
    lease_.reset();
    locked_->leases.finish_releases(locked_);
  }

  // Counts the uses of the found blocks, and fills in the answer.
  void end() {
    BlockStore& store = locked_->store;
    const RequestNumber request = store.begin_match(keys_);
    std::vector<BlockStore::Trail> session_blocks;
    const bool names_session = !terms_.request.hint.session.empty();
    for (std::size_t i = 0; i < found_.size(); ++i) {
      const BlockHandle& handle = found_[i];
      out_.blocks.push_back({planned_[i].key, handle});
      const SlotRef at(handle.tier, handle.slot);
      ++locked_->counts.hits[index_of(handle.tier)];
      // Without a lease, a block may be gone by now.
      const SlotRecord& slot = store.record(at);
      if (slot.generation != handle.generation || slot.life != SlotLife::committed || slot.gone) {
        continue;
      }
      store.used(at, user_);
      const bool is_hub = store.is_hub(at);
      store.found(at, request, is_hub);
      if (is_hub) hubs_.push_back(planned_[i].key);
      if (names_session) session_blocks.push_back(store.trail(slot.owner));
    }
    if (out_.matched < keys_.size()) store.missed(keys_[out_.matched], request);
    if (lease_) {
      locked_->leases.renew(*lease_, locked_.now() + std::chrono::milliseconds(terms_.lease_ms));
      out_.lease = locked_->leases[*lease_].id;
      out_.expires_at_unix_ms = locked_.unix_ms() + terms_.lease_ms;
    }
    if (names_session) {
      locked_->sessions.add({terms_.request.holder, terms_.request.hint.session}, session_blocks);
    }
  }

  struct Planned {
    std::uint32_t key = 0;
    KvGroupNumber group = 0;
  };

  CacheLock& locked_;
  const CacheConfig& config_;
  const std::span<const KeyView> keys_;
  const Terms& terms_;
  const UserNumber user_;
  GroupMatch& out_;
  std::size_t steps_ = 0;
  std::vector<std::vector<std::uint8_t>> known_;  // by group and key
  std::vector<FullReach> full_;                   // by group
  std::vector<Planned> planned_;
  std::vector<BlockHandle> found_;  // of planned_
  std::optional<LeaseNumber> lease_;
  std::vector<std::uint32_t> hubs_;
};

}  // namespace

Result<> Cache::match_groups(const GroupMatchRequest& request, GroupMatch& out) {
  CacheCore& core = *core_;
  out = {};
  CAIRN_TRY(core.check_count(request.keys.size()));
  std::uint32_t duration_ms = 0;
  if (request.lease_ms != 0) {
    auto checked = core.lease_duration_ms(request.lease_ms);
    if (!checked) return std::move(checked).error();
    duration_ms = *checked;
  }
  std::vector<std::uint32_t> hubs;
  std::int64_t unix_ms = 0;
  {
    CacheLock locked(core, LockUse::match);
    CAIRN_TRY(locked.check_usable());
    locked->leases.end_overdue(locked);
    const GroupMatching::Terms terms{.request = request, .lease_ms = duration_ms};
    GroupMatching matching(locked, terms, out);
    CAIRN_TRY(matching.run());
    if (duration_ms == 0) {
      std::vector<BlockHandle> blocks;
      for (const GroupMatch::Block& block : out.blocks) blocks.push_back(block.handle);
      touch_from_end(locked, blocks,
                     {.next_use = request.hint.reuse.next_use(), .user = matching.user()});
    }
    ++locked->counts.matches;
    locked->counts.count(request.hint.reuse);
    // With a shared tier, count_beyond() counts the misses.
    if (!core.config.shared) locked->counts.misses += request.keys.size() - out.matched;
    hubs = matching.hubs();
    unix_ms = locked.unix_ms();
  }
  core.reuse.matched({.keys = request.keys,
                      .hubs = hubs,
                      .unix_ms = unix_ms,
                      .only_looks = duration_ms == 0,
                      .found = out.matched,
                      .lease = out.lease});
  return {};
}

}  // namespace cairn
