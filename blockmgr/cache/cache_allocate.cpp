// Cache: allocation of slots, under a lease.
#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

#include "base/assert.hpp"
#include "blockmgr/cache/cache.hpp"
#include "blockmgr/core/cache_core.hpp"

namespace cairn {
namespace {

// Slots added to a lease under one hold of the lock: some 40 ns each.
constexpr std::size_t kSlotsAtATime = 128;
// Followed keys looked up and pinned under one hold of the lock: up to 300 ns each.
constexpr std::size_t kStepFollowed = 48;
// Blocks that no match reaches may replace at most one block in this many of the tier.
constexpr std::uint32_t kCutOffShare = 16;

bool has_free_slots(CacheLock& locked, const AllocateRequest& request) {
  if (locked->slots.any_waits(request.tier)) return false;
  const SlotPool& pool = locked->store.pool(request.tier);
  if (request.group_counts.empty()) return pool.free_count() >= request.count;
  // Groups may share the slots.
  std::uint64_t units = 0;
  for (std::size_t i = 0; i < request.group_counts.size(); ++i) {
    const auto group = static_cast<KvGroupNumber>(i);
    if (pool.free_for(group) < request.group_counts[i]) return false;
    units += std::uint64_t{request.group_counts[i]} * pool.units_of(group);
  }
  return pool.free_count() >= units;
}

// One allocation, from the request to the lease. Pins the blocks that the new ones will follow, in
// place, while it waits for slots.
class SlotAsk : public std::enable_shared_from_this<SlotAsk> {
 public:
  struct Terms {
    std::uint32_t lease_ms = 0;
    LeaseQuotaShare pins = {};  // counts the slots until the lease does
  };
  SlotAsk(std::shared_ptr<CacheCore> core, const AllocateRequest& request, Terms terms,
          Done<Allocation> done)
      : core_(std::move(core)),
        request_(request),
        terms_(std::move(terms)),
        done_(std::move(done)) {
    request_.follows = {};  // the span is gone when the slots come
    for (std::size_t group = 0; group < request_.group_counts.size(); ++group) {
      kv_groups_.insert(kv_groups_.end(), request_.group_counts[group],
                        static_cast<KvGroupNumber>(group));
    }
  }

  void begin(CacheLock& locked, std::span<const std::optional<BlockKey>> follows) {
    if (follows.empty() || is_lossless(locked)) return ask(locked, request_.count);
    const std::uint32_t most = hold_followed(locked, follows);
    if (auto usable = locked.check_usable(); !usable) return refused(locked, usable.error());
    ask(locked, most);
  }

 private:
  // Whether there are free slots, or evicted blocks move to a lower tier and stay findable.
  bool is_lossless(CacheLock& locked) const {
    if (has_free_slots(locked, request_)) return true;
    return core_->settings->offload != OffloadMode::never &&
           locked->store.next_lower(request_.tier).has_value();
  }

  // Pins the followed blocks. Returns the number of blocks for which others may be evicted.
  std::uint32_t hold_followed(CacheLock& locked, std::span<const std::optional<BlockKey>> follows) {
    const SlotPool& pool = locked->store.pool(request_.tier);
    few_ = std::min(request_.count, std::max(pool.free_count() + pool.cut_off_count(),
                                             std::max(1U, pool.limit() / kCutOffShare)));
    bool is_reached = true;
    for (std::size_t i = 0; i < follows.size(); ++i) {
      if (i > 0 && i % kStepFollowed == 0) locked.yield();
      if (!follows[i]) continue;
      const EntryNumber parent = locked->store.find(*follows[i], locked.now());
      if (parent == kNoEntry || locked->store.entry(parent).cut_off != 0) {
        if (i == 0) is_reached = false;
        continue;
      }
      followed_.push_back(locked->store.highest_copy(locked->store.entry(parent)));
      locked->store.pin_in_place(followed_.back());
    }
    return is_reached ? request_.count : few_;
  }

  void ask(CacheLock& locked, std::uint32_t most) {
    std::uint32_t count = request_.count;
    if (request_.takes_fewer) {
      const std::uint64_t hoped = locked->slots.fitting(
          locked, request_.tier, {.count = request_.count, .kv_groups = kv_groups_});
      count = static_cast<std::uint32_t>(std::clamp<std::uint64_t>(hoped, 1, most));
    } else if (most < count) {
      return refused(
          locked, {ErrorCode::no_capacity,
                   "tier " + std::string(to_string(request_.tier)) + " has room for " +
                       std::to_string(most) + " of " + std::to_string(count) +
                       " blocks without evicting those that they follow; ask for fewer at a time"});
    }
    SlotRequest wanted{
        .count = count,
        .kv_groups =
            std::vector(kv_groups_.begin(), kv_groups_.begin() + (kv_groups_.empty() ? 0 : count)),
        .priority = request_.priority,
        .takes_fewer = request_.takes_fewer};
    wanted.granted = [self = shared_from_this()](CacheLock& inner,
                                                 Result<std::span<const SlotRef>> slots) {
      if (!slots) return self->refused(inner, slots.error());
      self->granted(inner, *slots);
    };
    if (auto asked = locked->slots.ask(locked, request_.tier, std::move(wanted)); !asked) {
      refused(locked, asked.error());
    }
  }

  void granted(CacheLock& locked, std::span<const SlotRef> slots) {
    if (slots.size() + followed_.size() <= kSlotsAtATime) {
      let_followed_go(locked);
      return answer(locked, lease_slots(locked, slots));
    }
    // Each step takes the lock by itself.
    locked.after([self = shared_from_this(), taken = std::vector(slots.begin(), slots.end())] {
      CacheLock own(*self->core_, LockUse::allocate);
      self->let_followed_go(own);
      self->answer(own, self->lease_slots(own, taken));
    });
  }

  // If there is no other room, unpins the followed blocks and asks again.
  void refused(CacheLock& locked, Error error) {
    if (followed_.empty()) {
      terms_.pins.give_back_all();
      return answer(locked, std::move(error));
    }
    locked.after([self = shared_from_this(), error = std::move(error)] {
      CacheLock own(*self->core_, LockUse::allocate);
      self->let_followed_go(own);
      if (error.code != ErrorCode::no_capacity) return self->refused(own, error);
      if (auto usable = own.check_usable(); !usable) return self->refused(own, usable.error());
      self->ask(own, self->few_);
    });
  }

  // Unpins from the last one on. Yields the lock if there are many.
  void let_followed_go(CacheLock& locked) {
    for (std::size_t gone = 1; !followed_.empty(); ++gone) {
      locked->store.unpin_in_place(followed_.back());
      followed_.pop_back();
      if (gone % kSlotsAtATime == 0) locked.yield();
    }
  }

  void answer(CacheLock& locked, Result<Allocation> result) {
    locked.after([self = shared_from_this(), result = std::move(result)]() mutable {
      self->done_(std::move(result));
    });
  }

  Result<Allocation> lease_slots(CacheLock& locked, std::span<const SlotRef> slots);

  const std::shared_ptr<CacheCore> core_;
  AllocateRequest request_;
  Terms terms_;
  Done<Allocation> done_;
  std::vector<KvGroupNumber> kv_groups_;  // of the blocks; empty: group 0
  std::vector<SlotRef> followed_;         // pinned in place
  std::uint32_t few_ = 0;                 // blocks that may replace followed ones
};

// Takes over the slots' pins, even if it fails.
Result<Allocation> SlotAsk::lease_slots(CacheLock& locked, std::span<const SlotRef> slots) {
  const auto may_open = [&locked]() -> Result<> {
    CAIRN_TRY(locked.check_usable());
    return locked->leases.check_room();
  };
  if (auto may = may_open(); !may) {
    for (const SlotRef at : slots) locked->store.unpin(at);
    terms_.pins.give_back_all();
    return std::move(may).error();
  }
  const LeaseNumber lease = locked->leases.open({.expires_at = Leases::kNotYet,
                                                 .holder = request_.holder,
                                                 .quota = request_.quota,
                                                 .pins = terms_.pins.quota()});
  Allocation allocation{.lease = locked->leases[lease].id};
  allocation.blocks.reserve(slots.size());
  while (true) {
    const auto step = slots.first(std::min(kSlotsAtATime, slots.size()));
    slots = slots.subspan(step.size());
    for (const SlotRef at : step) {
      locked->store.record(at).owner = lease;
      locked->store.lease_pinned(at);
      allocation.blocks.push_back(locked->store.handle(at));
    }
    terms_.pins.give_back(step.size());
    locked->leases.add(lease, step);
    if (slots.empty()) break;
    locked.yield();
    // If the cache was removed, that ended the lease and released the slots it had so far.
    if (auto usable = locked.check_usable(); !usable) {
      for (const SlotRef at : slots) locked->store.unpin(at);
      terms_.pins.give_back_all();
      return std::move(usable).error();
    }
  }
  terms_.pins.give_back_all();  // there may be fewer slots than requested
  locked->leases.renew(lease, locked.now() + std::chrono::milliseconds(terms_.lease_ms));
  allocation.expires_at_unix_ms = locked.unix_ms() + terms_.lease_ms;
  return allocation;
}

Result<> check_request(const CacheCore& core, const AllocateRequest& request) {
  CAIRN_TRY(core.check_tier(request.tier));
  if (request.count < 1 || request.count > core.options().max_blocks_per_request) {
    return Error{ErrorCode::out_of_range,
                 "count is " + std::to_string(request.count) + ", not 1 to " +
                     std::to_string(core.options().max_blocks_per_request)};
  }
  if (!request.group_counts.empty()) {
    CAIRN_TRY(core.check_kv_group(static_cast<KvGroupNumber>(request.group_counts.size() - 1)));
    CAIRN_ASSERT(std::accumulate(request.group_counts.begin(), request.group_counts.end(),
                                 std::uint64_t{0}) == request.count,
                 "blocks would be of no group");
  }
  if (request.priority > kMaxPriority) {
    return Error{ErrorCode::out_of_range, "priority is " + std::to_string(request.priority) +
                                              ", not 0 to " + std::to_string(kMaxPriority)};
  }
  return core.check_quota(request.quota.get(), request.tier, request.count);
}

}  // namespace

void Cache::allocate(const AllocateRequest& request, Done<Allocation> done) {
  CacheCore& core = *core_;
  if (auto fine = check_request(core, request); !fine) return done(std::move(fine).error());
  const auto duration_ms = core.lease_duration_ms(request.lease_ms);
  if (!duration_ms) return done(duration_ms.error());

  CacheLock locked(core, LockUse::allocate);
  const auto take_on = [&]() -> Result<LeaseQuotaShare> {
    CAIRN_TRY(locked.check_usable());
    locked->leases.end_overdue(locked);
    // Count from here on: a request that waits for slots holds its share.
    auto pins = LeaseQuotaShare::take(request.pins, request.count);
    if (!pins) return pins;
    CAIRN_TRY(locked->leases.check_held(locked, request.count));
    if (!request.may_evict && !has_free_slots(locked, request)) {
      return Error{ErrorCode::no_capacity, "tier " + std::string(to_string(request.tier)) +
                                               " has fewer than " + std::to_string(request.count) +
                                               " free blocks"};
    }
    return pins;
  };
  auto pins = take_on();
  if (!pins) {
    return locked.after([done = std::move(done), error = std::move(pins).error()]() mutable {
      done(std::move(error));
    });
  }
  std::make_shared<SlotAsk>(core_, request,
                            SlotAsk::Terms{.lease_ms = *duration_ms, .pins = std::move(*pins)},
                            std::move(done))
      ->begin(locked, request.follows);
}

}  // namespace cairn
