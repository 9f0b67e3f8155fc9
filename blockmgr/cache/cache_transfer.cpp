// Cache: movements that a client asked for.
#include <algorithm>
#include <limits>
#include <string>
#include <unordered_set>

#include "base/hex.hpp"
#include "blockmgr/cache/cache_core.hpp"

namespace cairn {
namespace {

// Where to read from: pinned memory reaches every tier directly; then the device; disk last.
std::optional<SlotRef> best_source(const Entry& entry, Tier to) {
  for (Tier tier : {Tier::pinned, Tier::device, Tier::disk}) {
    const SlotNumber slot = entry.slots[index_of(tier)];
    if (tier != to && slot != kNoSlot) return SlotRef(tier, slot);
  }
  return std::nullopt;
}

// Sources of a tier next to each other, in the order of the keys: jobs read from one tier.
void group_by_source(Move& move) {
  std::vector<std::size_t> order(move.items.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return move.items[a].source.tier() < move.items[b].source.tier();
  });
  std::vector<Move::Item> items;
  std::vector<BlockKey> keys;
  for (std::size_t i : order) {
    items.push_back(move.items[i]);
    keys.push_back(move.keys[i]);
  }
  move.items = std::move(items);
  move.keys = std::move(keys);
}

Arrivals::Expected& add_item(CacheCore& core, const std::shared_ptr<Move>& move,
                             const BlockKey& key, SlotRef source) {
  core.store.pin(source);
  move->items.push_back({.source = source, .destination = source});
  move->keys.push_back(key);
  return core.arrivals.expect({key, move->to}, move);
}

// What is waited for is as urgent as who waits: the leader's jobs come no later than the follower's
// would, until this key has come.
void follow(Section& section, CacheCore& core, Arrivals::Expected& expected,
            Arrivals::Follower follower) {
  Move& leader = *expected.leader;
  const std::int32_t before = leader.urgency();
  ++leader.followed[follower.move->priority];
  expected.followers.push_back(std::move(follower));
  const std::int32_t urgency = leader.urgency();
  if (urgency == before) return;
  for (const auto& [first, id] : leader.ids) {
    section.after(
        [services = core.services, id = id, urgency] { services->engine.raise(id, urgency); });
  }
}

void end_following(Move& leader, const Move& follower) {
  const auto at = leader.followed.find(follower.priority);
  if (--at->second == 0) leader.followed.erase(at);
}

// A key that is not in the tier yet.
struct Wanted {
  EntryNumber entry = kNoEntry;
  Arrivals::Expected* expected = nullptr;  // where it is on its way
};

// Moves the key, or waits for the transfer that is moving it already.
void add_key(Section& section, CacheCore& core, const std::shared_ptr<Move>& move,
             const Wanted& wanted) {
  const SlotRef source = *best_source(core.store.entry(wanted.entry), move->to);
  if (wanted.expected == nullptr) {
    add_item(core, move, core.store.key(wanted.entry), source);
    return;
  }
  follow(section, core, *wanted.expected, {.move = move, .from = source.tier()});
  ++move->following;
}

// Asks for the slots and takes the keys already there for done.
void launch(Section& section, CacheCore& core, const std::shared_ptr<Move>& move,
            std::uint64_t already_there) {
  core.services->transfers.add(*move->transfer, TransferTable::Arrived{.blocks = already_there});
  core.transfers.emplace(*move->transfer, move);
  if (!move->items.empty()) return core.bring(section, move);
  if (move->ended_all()) core.finish(section, move);
}

}  // namespace

void CacheCore::bring(Section& section, const std::shared_ptr<Move>& move) {
  group_by_source(*move);
  SlotRequest request{.id = ++last_request,
                      .count = static_cast<std::uint32_t>(move->items.size())};
  move->request = request.id;
  request.granted = [this, move](Section& inner, Result<std::span<const SlotRef>> slots) {
    if (slots) {
      for (std::size_t i = 0; i < move->items.size(); ++i) {
        move->items[i].destination = (*slots)[i];
      }
      return start(inner, move);
    }
    move->request = 0;
    move->next = move->items.size();
    for (auto item = move->items.rbegin(); item != move->items.rend(); ++item) {
      store.unpin(item->source);
    }
    const Error why = slots.error();
    const bool cancelled = why.code == ErrorCode::cancelled;
    for (std::size_t i = 0; i < move->keys.size(); ++i) {
      ++(cancelled ? move->skipped : move->failed);
      if (!cancelled && move->transfer) {
        services->transfers.add(*move->transfer, TransferStatus::Failure{move->keys[i], why});
      }
    }
    if (move->ended_all()) finish(inner, move);
    // One that asked for too much does not speak for those who want less: key by key.
    const bool may_try_again = move->transfer || move->items.size() > 1;
    for (std::size_t i = 0; i < move->keys.size(); ++i) {
      std::shared_ptr<Move> again;
      tell_followers(inner, *move, i, may_try_again ? nullptr : &why, again);
      if (again) bring(inner, again);
    }
  };
  if (auto asked = request_slots(section, move->to, std::move(request)); !asked) {
    request.granted(section, std::move(asked).error());
  }
}

void CacheCore::tell_followers(Section& section, Move& move, std::size_t index, const Error* error,
                               std::shared_ptr<Move>& again) {
  if (move.purpose != Move::Purpose::transfer) return;
  const BlockKey& key = move.keys[index];
  Arrivals::Expected* next = nullptr;
  for (Arrivals::Follower& follower : arrivals.end({key, move.to})) {
    const std::shared_ptr<Move>& told = follower.move;
    end_following(move, *told);
    if (told->cancelled) continue;
    const EntryNumber entry = dropped ? kNoEntry : store.find(key, section.now());
    const SlotNumber copy =
        entry == kNoEntry ? kNoSlot : store.entry(entry).slots[index_of(move.to)];
    if (copy != kNoSlot) {
      hold_for_lease(*told, {move.to, copy});
      if (told->drop_source) drop_moved_copies(entry, move.to, follower.from);
      if (told->transfer) {
        services->transfers.add(*told->transfer, TransferTable::Arrived{.blocks = 1});
      }
    } else if (entry == kNoEntry || error != nullptr) {
      ++told->failed;
      if (told->transfer) {
        services->transfers.add(*told->transfer,
                                TransferStatus::Failure{key, error ? *error : key_vanished()});
      }
    } else {
      if (!again) {
        again = std::make_shared<Move>();
        again->to = move.to;
        again->priority = std::numeric_limits<std::int32_t>::min();  // its followers have one
      }
      if (next == nullptr) {
        next = &add_item(*this, again, key, *best_source(store.entry(entry), move.to));
      }
      follow(section, *this, *next, std::move(follower));
      continue;
    }
    --told->following;
    if (told->ended_all()) finish(section, told);
  }
}

Result<TransferId> Cache::transfer(TransferRequest request) {
  CacheCore& core = *core_;
  CAIRN_TRY(core.check_tier(request.to));
  if (request.keys.size() > core.options().max_blocks_per_request) {
    return Error{ErrorCode::out_of_range,
                 std::to_string(request.keys.size()) + " keys, not up to " +
                     std::to_string(core.options().max_blocks_per_request)};
  }
  Section section(core);
  CAIRN_TRY(core.check_usable());
  core.end_overdue(section);
  std::vector<EntryNumber> entries;
  for (const BlockKey& key : request.keys) {
    entries.push_back(core.store.find(key, section.now()));
    if (entries.back() == kNoEntry) {
      return Error{ErrorCode::unknown_key,
                   "key " + to_hex(key.view().bytes()) + " is not in cache " + core.config.name};
    }
  }
  return begin_transfer(section, std::move(request), entries);
}

Result<TransferId> Cache::drain(std::optional<Tier> to) {
  CacheCore& core = *core_;
  TransferRequest request;
  for (Tier tier : kTiers) {
    if (core.spaces[index_of(tier)]) request.to = to.value_or(tier);
  }
  CAIRN_TRY(core.check_tier(request.to));
  Section section(core);
  CAIRN_TRY(core.check_usable());
  core.end_overdue(section);
  core.store.expire(section.now());
  std::vector<EntryNumber> present;
  std::vector<EntryNumber> missing;
  for (EntryNumber entry = 0; entry < core.store.entry_end(); ++entry) {
    const Entry& known = core.store.entry(entry);
    if (!known.present()) continue;
    present.push_back(entry);
    if (known.slots[index_of(request.to)] == kNoSlot) missing.push_back(entry);
  }
  const bool makes_room = missing.size() > core.store.pool(request.to).free_count();
  const std::vector<EntryNumber>& entries = makes_room ? present : missing;
  for (const EntryNumber entry : entries) request.keys.push_back(core.store.key(entry));
  return begin_transfer(section, std::move(request), entries);
}

Result<TransferId> Cache::begin_transfer(Section& section, TransferRequest request,
                                         const std::vector<EntryNumber>& entries) {
  CacheCore& core = *core_;
  std::vector<EntryNumber> seen = entries;
  std::sort(seen.begin(), seen.end());
  seen.erase(std::unique(seen.begin(), seen.end()), seen.end());
  std::vector<Arrivals::Expected*> expected(seen.size());
  std::uint64_t missing = 0;
  std::uint64_t counted = 0;  // of the missing, under the caller's quota
  std::uint64_t kept = 0;     // of what could make room
  const QuotaNumber quota = core.store.quota_number(request.quota);
  for (std::size_t rank = 0; rank < seen.size(); ++rank) {
    const Entry& entry = core.store.entry(seen[rank]);
    const SlotNumber slot = entry.slots[index_of(request.to)];
    if (slot == kNoSlot) {
      expected[rank] = core.arrivals.find({core.store.key(seen[rank]), request.to});
      if (expected[rank] != nullptr) continue;
      ++missing;
      if (quota != 0 && entry.quota == quota) ++counted;
    } else if (core.store.record({request.to, slot}).pins == 0) {
      ++kept;
    }
  }
  CAIRN_TRY(core.check_quota(request.quota.get(), request.to, counted));
  if (missing > 0 && missing + kept > core.attainable(request.to)) {
    return Error{ErrorCode::no_capacity, "tier " + std::string(to_string(request.to)) +
                                             " cannot take " + std::to_string(missing) +
                                             " more blocks"};
  }
  auto id = core.services->transfers.open(core_, request.keys.size());
  if (!id) return id;

  auto move = std::make_shared<Move>();
  move->to = request.to;
  move->priority = request.priority;
  move->drop_source = request.move;
  move->transfer = *id;
  move->lease = request.lease;
  std::uint64_t already_there = 0;
  std::vector<bool> taken(seen.size());
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const auto rank = static_cast<std::size_t>(
        std::lower_bound(seen.begin(), seen.end(), entries[i]) - seen.begin());
    const bool named_before = taken[rank];
    taken[rank] = true;
    const Entry& entry = core.store.entry(entries[i]);
    const bool there = entry.slots[index_of(request.to)] != kNoSlot;
    if (there || named_before) {
      ++already_there;
      if (there && !named_before) {
        move->kept.push_back({request.to, entry.slots[index_of(request.to)]});
        core.store.pin(move->kept.back());
        core.hold_for_lease(*move, move->kept.back());
        if (request.move) core.drop_moved_copies(entries[i], request.to, request.to);
      }
      continue;
    }
    add_key(section, core, move, {entries[i], expected[rank]});
  }
  launch(section, core, move, already_there);
  return *id;
}

Result<std::optional<TransferId>> Cache::onboard(const OnboardRequest& request) {
  CacheCore& core = *core_;
  CAIRN_TRY(core.check_tier(request.tier));
  if (request.keys.size() > core.options().max_blocks_per_request) {
    return Error{ErrorCode::out_of_range,
                 std::to_string(request.keys.size()) + " keys, not up to " +
                     std::to_string(core.options().max_blocks_per_request)};
  }
  Section section(core);
  auto lease = core.live_lease(section, request.lease);
  if (!lease) return std::move(lease).error();
  auto move = std::make_shared<Move>();
  move->to = request.tier;
  move->priority = request.priority;
  move->lease = request.lease;
  const std::uint64_t room = core.attainable(request.tier);
  std::vector<Wanted> chosen;
  std::unordered_set<EntryNumber> seen;
  std::uint64_t missing = 0;
  std::uint64_t counted = 0;  // of them, under the caller's quota
  const QuotaNumber quota = core.store.quota_number(request.quota);
  const LeaseQuota* const pins = core.leases[*lease].pins.get();
  for (const KeyView key : request.keys) {
    const EntryNumber entry = core.store.find(key, section.now());
    if (entry == kNoEntry) break;
    const SlotRef highest = core.store.highest_copy(core.store.entry(entry));
    if (highest.tier() <= request.tier || !seen.insert(entry).second) continue;
    if (pins != nullptr && !pins->fits(chosen.size() + 1)) break;
    if (!core.check_held(chosen.size() + 1)) break;
    Arrivals::Expected* const expected = core.arrivals.find({BlockKey(key), request.tier});
    if (expected == nullptr) {
      if (missing == room) break;
      if (quota != 0 && core.store.entry(entry).quota == quota) {
        if (!request.quota->fits(request.tier, counted + 1)) break;
        ++counted;
      }
      ++missing;
    }
    chosen.push_back({entry, expected});
  }
  if (chosen.empty()) return std::optional<TransferId>();
  auto id = core.services->transfers.open(core_, chosen.size());
  if (!id) return std::move(id).error();
  move->transfer = *id;
  for (const Wanted& wanted : chosen) add_key(section, core, move, wanted);
  launch(section, core, move, 0);
  return std::optional<TransferId>(*id);
}

}  // namespace cairn
