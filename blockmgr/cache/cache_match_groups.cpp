// Cache: finding keys in a cache of several KV groups.
#include "blockmgr/cache/cache.hpp"
#include "blockmgr/cache/match_steps.hpp"
#include "blockmgr/core/cache_core.hpp"
#include "blockmgr/index/group_search.hpp"

namespace cairn {
namespace {

// A block that was found may be gone when it is pinned, because the lock is released in between.
// Then the prefix is searched again, this often at most.
constexpr int kMaxTries = 4;

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
  // Releases the lock now and then. Error: unknown_cache.
  Result<> step() {
    if (++steps_ % kStepKeys != 0) return {};
    locked_.yield();
    return locked_.check_usable();
  }

  // Finds the prefix, and the blocks that it needs.
  Result<> look() {
    GroupSearch search({.config = config_, .num_keys = keys_.size(), .have = terms_.request.have});
    auto searched = search.run([this](GroupSearch::Block block) -> Result<bool> {
      CAIRN_TRY(step());
      return locked_->store.find(keys_[block.key].in(block.kv_group), locked_.now()) != kNoEntry;
    });
    if (!searched) return searched;
    out_.matched = search.matched();
    out_.full_matched = search.full_matched();
    planned_ = search.needed();
    return {};
  }

  // Returns false, with nothing pinned, if a block is gone.
  Result<bool> pin_planned() {
    found_.clear();
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
    for (const GroupSearch::Block& planned : planned_) {
      if (auto usable = step(); !usable) {
        lease_.reset();  // the removal of the cache has ended it
        return std::move(usable).error();
      }
      const EntryNumber entry =
          locked_->store.find(keys_[planned.key].in(planned.kv_group), locked_.now());
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
      locked_->pins.hit(locked_, slot.owner);
      const bool is_hub = store.is_hub(at);
      store.found(at, request, is_hub);
      if (is_hub) hubs_.push_back(planned_[i].key);
      if (names_session) session_blocks.push_back(store.trail(slot.owner));
    }
    // The first full block that the request will store.
    if (out_.full_matched < keys_.size()) {
      store.missed(keys_[out_.full_matched].in(store.full_group()), request);
    }
    if (lease_) {
      locked_->leases.renew(*lease_, locked_.now() + std::chrono::milliseconds(terms_.lease_ms));
      out_.lease = locked_->leases[*lease_].id;
      out_.expires_at_unix_ms = locked_.unix_ms() + terms_.lease_ms;
    }
    if (names_session) {
      locked_->sessions.add({terms_.request.holder, terms_.request.hint.session},
                            {session_blocks, locked_.unix_ms()});
    }
  }

  CacheLock& locked_;
  const CacheConfig& config_;
  const std::span<const KeyView> keys_;
  const Terms& terms_;
  const UserNumber user_;
  GroupMatch& out_;
  std::size_t steps_ = 0;
  std::vector<GroupSearch::Block> planned_;
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
