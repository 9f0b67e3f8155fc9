// Cache: transfers that a client requested.
#include <algorithm>
#include <functional>
#include <set>
#include <string>

#include "base/hex.hpp"
#include "blockmgr/cache/cache.hpp"
#include "blockmgr/core/cache_core.hpp"

namespace cairn {
namespace {

// Keys added to a transfer under one hold of the lock: up to 1 us each, if none of a key's data is
// in the processor's caches.
constexpr std::size_t kTakenOnAtOnce = 8;
// Entries examined under one hold of the lock: some 10 ns each.
constexpr std::size_t kLookedAtAtOnce = 1024;

// Prefetched blocks are guesses, so most of a tier stays for blocks that were asked for.
constexpr double kPrefetchShare = 0.25;

// Units that the holder's prefetches may bring to a tier now.
std::uint64_t prefetch_room(CacheLock& locked, Tier tier, const LeaseHolder& holder) {
  const SlotPool& slots = locked->store.pool(tier);
  const std::uint64_t of_all =
      slots.left_of({.share = kPrefetchShare, .used_units = slots.prefetched_units()});
  return std::min(of_all, locked->store.asked_room(slots, locked->leases.user_of(holder)));
}

// Prepares a transfer, from its first key until its launch. Added keys are pinned. The destructor
// releases them if the transfer was not launched.
class TransferStart {
 public:
  TransferStart(std::shared_ptr<CacheCore> core, const TransferRequest& terms)
      : core_(std::move(core)), terms_(terms), batch_(std::make_shared<TransferBatch>()) {
    batch_->open = true;
    batch_->to = terms.to;
    batch_->priority = terms.priority;
    batch_->drop_source = terms.move;
    batch_->lease = terms.lease;
  }
  void make_prefetch(CacheLock& locked, const LeaseHolder& holder) {
    batch_->is_prefetch = true;
    batch_->prefetching_user = locked->leases.user_of(holder);
  }
  TransferStart(const TransferStart&) = delete;
  TransferStart& operator=(const TransferStart&) = delete;
  ~TransferStart() {
    if (begun_) return;  // launched; `batch_->open` may be true again, if it got no slots
    if (!batch_->transfer) return;  // no key was added
    CacheLock locked(*core_, LockUse::transfer);
    locked->transfers.give_up(locked, batch_);
    locked.services().transfers.withdraw(*batch_->transfer);
  }

  std::uint64_t total() const { return total_; }
  std::uint64_t missing_units() const { return missing_units_; }
  void count(LeaseQuotaShare pins) { batch_->pins = std::move(pins); }

  // Adds a key. Returns false, without adding it, if new copies would take more than `room` units
  // or more than the caller's quota. Error: queue_full.
  Result<bool> add(CacheLock& locked, EntryNumber entry, std::optional<std::uint64_t> room = {}) {
    CAIRN_TRY(open());
    const Transfers::Role role = locked->transfers.role_of(locked, batch_, entry);
    if (role == Transfers::Role::missing) {
      const std::uint32_t units =
          locked->store.pool(terms_.to).units_of(locked->store.entry(entry).kv_group());
      if (room && missing_units_ + units > *room) return false;
      const QuotaNumber quota = locked->store.quota_number(terms_.quota);
      const bool counts = quota != 0 && locked->store.entry(entry).quota == quota;
      if (room && counts && !terms_.quota->fits(terms_.to, counted_ + 1)) return false;
      counted_ += counts ? 1u : 0u;
      ++missing_;
      missing_units_ += units;
      if (batch_->is_prefetch) {
        batch_->prefetching_units += units;
        locked->store.pool(terms_.to).expect_prefetched(batch_->prefetching_user, units);
      }
    }
    ++total_;
    if (role == Transfers::Role::there || role == Transfers::Role::named) ++already_there_;
    if (role == Transfers::Role::there) note_there(locked, entry);
    if (role != Transfers::Role::named) locked->transfers.add_key(locked, batch_, entry);
    return true;
  }

  // Notes a key that needs no copy. In unified memory its bytes may still have left the device.
  void note_there(CacheLock& locked, EntryNumber entry) {
    const SlotNumber slot = locked->store.entry(entry).slots[index_of(terms_.to)];
    if (slot == kNoSlot || core_->slots(terms_.to).storage_kind() != StorageKind::unified) return;
    there_.push_back(slot);
  }

  // Prefetches the noted blocks to their device. This is only a hint: nobody waits for its end.
  void prefetch_there() {
    if (there_.empty()) return;
    std::ranges::sort(there_);
    there_.erase(std::unique(there_.begin(), there_.end()), there_.end());
    TransferJob job;
    job.operation = JobOperation::prefetch;
    job.source = job.destination = &core_->slots(terms_.to);
    job.priority = terms_.priority;
    for (const SlotNumber slot : there_) job.pairs.push_back({slot, slot});
    core_->submit(
        std::move(job),
        [core = core_](const JobOutcome& outcome) {
          if (outcome.failures.empty()) return;
          core->services->log.warning(
              "cannot prefetch unified memory to its device",
              {{"cache", core->config.name}, {"detail", outcome.failures.front().error.detail}});
        },
        {});
  }

  // Launches the transfer. Error: no_capacity if `all_or_nothing` and not all blocks fit.
  Result<TransferId> begin(bool all_or_nothing) {
    CAIRN_TRY(open());
    Transfers::group_by_source(*batch_);
    core_->services->transfers.set_total(*batch_->transfer, total_);
    CacheLock locked(*core_, LockUse::transfer);
    CAIRN_TRY(locked.check_usable());
    CAIRN_TRY(core_->check_quota(terms_.quota.get(), terms_.to, counted_));
    if (all_or_nothing && missing_units_ > locked->slots.attainable(locked, terms_.to)) {
      return Error{ErrorCode::no_capacity, "tier " + std::string(to_string(terms_.to)) +
                                               " cannot take " + std::to_string(missing_) +
                                               " more blocks"};
    }
    use_all(locked);
    CAIRN_TRY(locked.check_usable());
    const TransferId id = *batch_->transfer;  // the transfer may end at once
    begun_ = true;
    locked->transfers.launch(locked, batch_, already_there_);
    locked.after([this] { prefetch_there(); });
    return id;
  }

 private:
  void use_all(CacheLock& locked) {
    std::size_t done = 0;
    const auto step = [&](SlotRef at) {
      if (done++ % kTakenOnAtOnce == kTakenOnAtOnce - 1) locked.yield();
      locked->transfers.use(locked, at);
    };
    for (const TransferBatch::Item& item : batch_->items) step(item.source);
    std::set<SlotRef> held;  // a key may occur twice
    for (const SlotRef at : batch_->kept) {
      step(at);
      if (!batch_->lease && !batch_->drop_source) continue;
      if (!held.insert(at).second || locked->store.record(at).gone) continue;
      locked->transfers.hold_for_lease(locked, *batch_, at);
      if (!batch_->drop_source) continue;
      locked->transfers.drop_moved_copies(
          locked, {.key = locked->store.record(at).owner, .from = at.tier(), .to = at.tier()});
    }
  }
  Result<> open() {
    if (batch_->transfer) return {};
    auto id = core_->open_transfer(0);
    if (!id) return std::move(id).error();
    batch_->transfer = *id;
    return {};
  }

  const std::shared_ptr<CacheCore> core_;
  const TransferRequest& terms_;
  const Transfers::Batch batch_;
  bool begun_ = false;
  std::uint64_t total_ = 0;
  std::uint64_t already_there_ = 0;
  std::uint64_t missing_ = 0;
  std::uint64_t missing_units_ = 0;
  std::uint64_t counted_ = 0;      // of the missing, under the caller's quota
  std::vector<SlotNumber> there_;  // in unified memory
};

}  // namespace

Result<TransferId> Cache::transfer(const TransferRequest& request) {
  CacheCore& core = *core_;
  CAIRN_TRY(core.check_tier(request.to));
  CAIRN_TRY(core.check_count(request.keys.size()));
  auto pins = LeaseQuotaShare::take(request.pins, request.keys.size());
  if (!pins) return std::move(pins).error();
  TransferStart start(core_, request);
  start.count(std::move(*pins));
  const std::vector<KeyView> keys(request.keys.begin(), request.keys.end());
  const auto take_on = [&]() -> Result<> {
    CacheLock locked(core, LockUse::transfer);
    CAIRN_TRY(locked.check_usable());
    locked->leases.end_overdue(locked);
    for (std::size_t i = 0; i < keys.size(); ++i) {
      if (i % kTakenOnAtOnce == 0) {
        if (i > 0) locked.yield();
        CAIRN_TRY(locked.check_usable());
        locked->store.prefetch(
            std::span(keys).subspan(i, std::min(kTakenOnAtOnce, keys.size() - i)));
      }
      const EntryNumber entry = locked->store.find(keys[i], locked.now());
      if (entry == kNoEntry) {
        return Error{ErrorCode::unknown_key,
                     "key " + to_hex(keys[i].bytes()) + " is not in cache " + core.config.name};
      }
      CAIRN_TRY(start.add(locked, entry));
    }
    return {};
  };
  CAIRN_TRY(take_on());
  return start.begin(/*all_or_nothing=*/true);
}

Result<TransferId> Cache::drain(std::optional<Tier> to) {
  CacheCore& core = *core_;
  TransferRequest request;
  for (Tier tier : kTiers) {
    if (core.spaces[index_of(tier)]) request.to = to.value_or(tier);
  }
  CAIRN_TRY(core.check_tier(request.to));
  TransferStart start(core_, request);
  const auto take_on = [&]() -> Result<> {
    CacheLock locked(core, LockUse::transfer);
    CAIRN_TRY(locked.check_usable());
    locked->leases.end_overdue(locked);
    locked.expire_keys();
    // Calls `each` with every present entry; may include entries committed meanwhile.
    const auto look_through =
        [&](const std::function<Result<bool>(EntryNumber)>& each) -> Result<> {
      std::size_t cost = 0;
      for (EntryNumber entry = 0; entry < locked->store.entry_end(); ++entry) {
        if (++cost >= kLookedAtAtOnce) {
          locked.yield();
          CAIRN_TRY(locked.check_usable());
          cost = 0;
          if (entry >= locked->store.entry_end()) break;
        }
        if (!locked->store.entry(entry).present()) continue;
        const auto taken_on = each(entry);
        if (!taken_on) return taken_on.error();
        if (*taken_on) cost += kLookedAtAtOnce / kTakenOnAtOnce;
      }
      return {};
    };
    const auto is_missing = [&](EntryNumber entry) {
      return locked->store.entry(entry).slots[index_of(request.to)] == kNoSlot;
    };
    std::uint64_t missing = 0;  // units
    CAIRN_TRY(look_through([&](EntryNumber entry) {
      const KvGroupNumber group = locked->store.entry(entry).kv_group();
      missing += is_missing(entry) ? locked->store.pool(request.to).units_of(group) : 0u;
      return false;
    }));
    // Blocks already in the tier must not be evicted to make room for the rest.
    const bool makes_room = missing > locked->store.pool(request.to).free_count();
    return look_through([&](EntryNumber entry) -> Result<bool> {
      if (!makes_room && !is_missing(entry)) return false;
      return start.add(locked, entry);
    });
  };
  CAIRN_TRY(take_on());
  return start.begin(/*all_or_nothing=*/true);
}

Result<std::optional<TransferId>> Cache::onboard(const OnboardRequest& request) {
  CacheCore& core = *core_;
  CAIRN_TRY(core.check_tier(request.tier));
  CAIRN_TRY(core.check_count(request.keys.size()));
  const TransferRequest terms{.to = request.tier,
                              .priority = request.priority,
                              .lease = request.lease,
                              .quota = request.quota};
  TransferStart start(core_, terms);
  const auto take_on = [&]() -> Result<> {
    CacheLock locked(core, LockUse::transfer);
    auto lease = locked->leases.live(locked, request.lease);
    if (!lease) return std::move(lease).error();
    const std::uint64_t room = locked->slots.attainable(locked, request.tier);
    for (std::size_t i = 0; i < request.keys.size(); ++i) {
      if (i % kTakenOnAtOnce == 0) {
        if (i > 0) locked.yield();
        lease = locked->leases.live(locked, request.lease);
        if (!lease) return std::move(lease).error();
        locked->store.prefetch(
            request.keys.subspan(i, std::min(kTakenOnAtOnce, request.keys.size() - i)));
      }
      const EntryNumber entry = locked->store.find(request.keys[i], locked.now());
      if (entry == kNoEntry) break;
      const SlotRef highest = locked->store.highest_copy(locked->store.entry(entry));
      if (highest.tier() <= request.tier) {
        if (highest.tier() == request.tier) start.note_there(locked, entry);
        continue;
      }
      const LeaseQuota* const pins = locked->leases[*lease].pins.get();
      if (pins != nullptr && !pins->fits(start.total() + 1)) break;
      if (!locked->leases.check_held(locked, start.total() + 1)) break;
      const auto taken_on = start.add(locked, entry, room);
      if (!taken_on) return taken_on.error();
      if (!*taken_on) break;
    }
    return {};
  };
  CAIRN_TRY(take_on());
  if (start.total() == 0) {
    start.prefetch_there();
    return std::optional<TransferId>();
  }
  auto id = start.begin(/*all_or_nothing=*/false);
  if (!id) return std::move(id).error();
  return std::optional(*id);
}

class PrefetchRoom {
 public:
  PrefetchRoom(CacheLock& locked, Tier tier, UserNumber user)
      : core_(locked.core().shared_from_this()), tier_(tier), user_(user) {}
  PrefetchRoom(const PrefetchRoom&) = delete;
  PrefetchRoom& operator=(const PrefetchRoom&) = delete;
  ~PrefetchRoom() {
    CacheLock locked(*core_, LockUse::upkeep);
    locked->store.pool(tier_).unexpect_prefetched(user_, units_);
  }
  void add(CacheLock& locked, std::uint64_t units) {
    units_ += units;
    locked->store.pool(tier_).expect_prefetched(user_, units);
  }

 private:
  const std::shared_ptr<CacheCore> core_;
  const Tier tier_;
  const UserNumber user_;
  std::uint64_t units_ = 0;
};

Result<PrefetchStart> Cache::prefetch(const PrefetchRequest& request) {
  CacheCore& core = *core_;
  CAIRN_TRY(core.check_tier(request.to));
  CAIRN_TRY(core.check_count(request.keys.size()));
  const TransferRequest terms{
      .to = request.to, .priority = request.priority, .quota = request.quota};
  TransferStart start(core_, terms);
  PrefetchStart result;
  const auto take_on = [&]() -> Result<> {
    CacheLock locked(core, LockUse::transfer);
    CAIRN_TRY(locked.check_usable());
    locked->leases.end_overdue(locked);
    start.make_prefetch(locked, request.holder);
    const std::uint64_t attainable = locked->slots.attainable(locked, request.to);
    const auto room = [&] {
      // Others may have taken some of the share meanwhile.
      return std::min(attainable,
                      start.missing_units() + prefetch_room(locked, request.to, request.holder));
    };
    for (std::size_t i = 0; i < request.keys.size(); ++i) {
      if (i > 0 && i % kTakenOnAtOnce == 0) locked.yield();
      CAIRN_TRY(locked.check_usable());
      const EntryNumber entry = locked->store.find(request.keys[i], locked.now());
      if (entry == kNoEntry) {
        result.missing.push_back(request.keys[i]);
        continue;
      }
      const SlotRef highest = locked->store.highest_copy(locked->store.entry(entry));
      if (highest.tier() <= request.to) {
        ++result.blocks;
      } else if (start.total() >= request.max_blocks) {
        ++result.beyond;
      } else {
        const auto taken_on = start.add(locked, entry, room());
        if (!taken_on) return taken_on.error();
        ++(*taken_on ? result.blocks : result.beyond);
      }
    }
    // What another server or a store may bring has its room from now on.
    std::shared_ptr<PrefetchRoom> for_missing;
    for (const BlockKey& key : result.missing) {
      if (!request.makes_room || start.total() + result.may_come >= request.max_blocks) break;
      const std::uint32_t units = locked->store.pool(request.to).units_of(key.kv_group());
      if (prefetch_room(locked, request.to, request.holder) < units) break;
      if (!for_missing) {
        for_missing = std::make_shared<PrefetchRoom>(locked, request.to,
                                                     locked->leases.user_of(request.holder));
        result.room = for_missing;
      }
      for_missing->add(locked, units);
      if (++result.may_come % kLookedAtAtOnce == 0) locked.yield();
      CAIRN_TRY(locked.check_usable());
    }
    return {};
  };
  CAIRN_TRY(take_on());
  result.copies = start.total();
  if (result.copies == 0) return result;
  auto id = start.begin(/*all_or_nothing=*/false);
  if (!id) return std::move(id).error();
  result.transfer = *id;
  return result;
}

}  // namespace cairn
