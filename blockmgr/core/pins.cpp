#include "blockmgr/core/pins.hpp"

#include <algorithm>
#include <utility>

#include "base/assert.hpp"
#include "blockmgr/core/cache_core.hpp"

namespace cairn {
namespace {

// Blocks of a pin that ends, under one hold of the lock: some 200 ns each.
constexpr std::size_t kEndStep = 64;

bool is_same(const LeaseHolder& a, const LeaseHolder& b) {
  if (a == nullptr || b == nullptr) return a == b;
  return *a == *b;
}

std::uint64_t share_of(const SlotPool& slots, double share) {
  return static_cast<std::uint64_t>(share * slots.limit());
}

}  // namespace

BlockStore& Pins::locked_store(CacheLock& locked) { return locked->store; }

// No token has an empty name.
std::string Pins::name_of(const LeaseHolder& holder) {
  return holder == nullptr ? std::string() : *holder;
}

std::optional<Pins::Number> Pins::open(Terms terms) {
  OfToken& token = tokens_[name_of(terms.holder)];
  const bool is_bounded = terms.holder != nullptr;
  if (pins_.size() >= kMaxPins || (is_bounded && token.pins >= kMaxPinsOfToken)) {
    if (token.pins == 0) tokens_.erase(name_of(terms.holder));
    return std::nullopt;
  }
  ++token.pins;
  if (terms.refresh_on_hit) ++refreshing_;
  const Number number = ++last_;
  pins_[number].terms = std::move(terms);
  return number;
}

bool Pins::has_of(const Pinned& pinned, const LeaseHolder& holder) const {
  return std::ranges::any_of(
      pinned.pins, [&](Number number) { return is_same(pins_.at(number).terms.holder, holder); });
}

std::vector<LeaseHolder> Pins::holders_of(const Pinned& pinned) const {
  std::vector<LeaseHolder> holders;
  for (const Number number : pinned.pins) {
    const LeaseHolder& holder = pins_.at(number).terms.holder;
    const bool is_known = std::ranges::any_of(
        holders, [&](const LeaseHolder& other) { return is_same(other, holder); });
    if (!is_known) holders.push_back(holder);
  }
  return holders;
}

bool Pins::fits_tier(CacheLock& locked, const Place& place) const {
  const SlotPool& slots = locked->store.pool(place.tier);
  const double share = locked.core().settings->pins.max_share;
  return slots.protected_units() + place.units <= share_of(slots, share);
}

// Without tokens all callers look alike, and only the tier's share applies.
bool Pins::fits_token(CacheLock& locked, const Place& place, const LeaseHolder& holder) const {
  if (holder == nullptr) return true;
  const SlotPool& slots = locked->store.pool(place.tier);
  const double share = locked.core().settings->pins.max_share_of_token;
  const std::uint64_t has = tokens_.at(*holder).units[index_of(place.tier)];
  return has + place.units <= share_of(slots, share);
}

Pins::Added Pins::add(CacheLock& locked, Number number, EntryNumber entry) {
  settle(locked);
  Pin& pin = pins_.at(number);
  const auto known = entries_.find(entry);
  if (known != entries_.end()) {
    Pinned& pinned = known->second;
    if (std::ranges::find(pinned.pins, number) != pinned.pins.end()) return Added::named;
    if (pinned.pins.size() >= kMaxPinsOfBlock || named_ >= kMaxNamedBlocks) return Added::too_many;
    move_up(locked, entry, pinned);
    // A move that began before this pin does not take the copy away.
    locked->store.stay({pinned.tier, locked->store.entry(entry).slots[index_of(pinned.tier)]});
    if (!has_of(pinned, pin.terms.holder)) {
      const Place place{.tier = pinned.tier, .units = pinned.units};
      if (!fits_token(locked, place, pin.terms.holder)) return Added::budget;
      tokens_.at(name_of(pin.terms.holder)).units[index_of(pinned.tier)] += pinned.units;
    }
    pinned.pins.push_back(number);
  } else {
    if (named_ >= kMaxNamedBlocks) return Added::too_many;
    const SlotRef at = locked->store.highest_copy(locked->store.entry(entry));
    const Place place{.tier = at.tier(), .units = locked->store.units_in(at)};
    if (!fits_tier(locked, place) || !fits_token(locked, place, pin.terms.holder)) {
      return Added::budget;
    }
    const KvGroupNumber kv_group = locked->store.entry(entry).kv_group();
    entries_.emplace(entry, Pinned{.tier = at.tier(),
                                   .units = place.units,
                                   .bytes = block_bytes(locked.core().shape(kv_group)),
                                   .pins = {number}});
    locked->store.protect(at);
    tokens_.at(name_of(pin.terms.holder)).units[index_of(at.tier())] += place.units;
  }
  pin.blocks.push_back(locked->store.trail(entry));
  ++pin.live;
  pin.bytes += entries_.at(entry).bytes;
  ++named_;
  return Added::added;
}

// A later pin protects the copy that its client would find now, if the bounds allow it.
void Pins::move_up(CacheLock& locked, EntryNumber number, Pinned& pinned) {
  const Entry& entry = locked->store.entry(number);
  const SlotRef highest = locked->store.highest_copy(entry);
  if (highest.tier() == pinned.tier) return;
  const Place place{.tier = highest.tier(), .units = locked->store.units_in(highest)};
  const std::vector<LeaseHolder> holders = holders_of(pinned);
  if (!fits(locked, place, holders)) return;
  for (const LeaseHolder& holder : holders) {
    auto& units = tokens_.at(name_of(holder)).units;
    units[index_of(pinned.tier)] -= pinned.units;
    units[index_of(place.tier)] += place.units;
  }
  locked->store.unprotect({pinned.tier, entry.slots[index_of(pinned.tier)]});
  locked->store.protect(highest);
  pinned.tier = place.tier;
  pinned.units = place.units;
}

std::optional<PinId> Pins::start(CacheLock& locked, Number number) {
  Pin& pin = pins_.at(number);
  if (pin.live == 0) {
    close(number);
    return std::nullopt;
  }
  random_.fill(pin.id);
  pin.expires_at = locked.now() + std::chrono::milliseconds(pin.terms.ttl_ms);
  pin.is_listed = true;
  by_id_.emplace(pin.id, number);
  by_end_.emplace(pin.expires_at, number);
  ++changes_;
  return pin.id;
}

void Pins::end_overdue(CacheLock& locked) {
  while (!by_end_.empty() && by_end_.begin()->first <= locked.now() && !locked->dropped) {
    end(locked, by_end_.begin()->second);
  }
}

void Pins::end_all(CacheLock& locked) {
  while (!by_end_.empty()) end(locked, by_end_.begin()->second);
}

void Pins::end(CacheLock& locked, Number number) {
  Pin& pin = pins_.at(number);
  if (pin.is_listed) {
    by_id_.erase(pin.id);
    by_end_.erase({pin.expires_at, number});
    pin.is_listed = false;
    ++changes_;
  }
  // Nobody else finds it any more, so it stays while the lock is free.
  while (!end_step(locked, number, kEndStep)) locked.yield();
}

// The end of a prefix first, as at the end of a lease.
bool Pins::end_step(CacheLock& locked, Number number, std::size_t blocks) {
  settle(locked);
  Pin& pin = pins_.at(number);
  for (; blocks > 0 && !pin.blocks.empty(); --blocks) {
    const EntryNumber entry = pin.blocks.back().entry;
    pin.blocks.pop_back();
    --named_;
    remove(locked, entry, number);
  }
  if (!pin.blocks.empty()) return false;
  close(number);
  return true;
}

// No effect if the pin does not have the block (any more).
void Pins::remove(CacheLock& locked, EntryNumber entry, Number number) {
  const auto at = entries_.find(entry);
  if (at == entries_.end()) return;
  Pinned& pinned = at->second;
  const auto named = std::ranges::find(pinned.pins, number);
  if (named == pinned.pins.end()) return;
  pinned.pins.erase(named);
  Pin& pin = pins_.at(number);
  --pin.live;
  pin.bytes -= pinned.bytes;
  if (!has_of(pinned, pin.terms.holder)) {
    tokens_.at(name_of(pin.terms.holder)).units[index_of(pinned.tier)] -= pinned.units;
  }
  if (!pinned.pins.empty()) return;
  const SlotNumber slot = locked->store.entry(entry).slots[index_of(pinned.tier)];
  locked->store.unprotect({pinned.tier, slot});
  entries_.erase(at);
}

// The key, or its room in the tier, is gone. Its pins keep their places in the lists, and find
// later that they do not have it.
void Pins::forget(EntryNumber entry) {
  const auto at = entries_.find(entry);
  if (at == entries_.end()) return;
  const Pinned& pinned = at->second;
  for (const LeaseHolder& holder : holders_of(pinned)) {
    tokens_.at(name_of(holder)).units[index_of(pinned.tier)] -= pinned.units;
  }
  for (const Number number : pinned.pins) {
    --pins_.at(number).live;
    pins_.at(number).bytes -= pinned.bytes;
  }
  entries_.erase(at);
}

void Pins::close(Number number) {
  const auto at = pins_.find(number);
  const Terms& terms = at->second.terms;
  if (terms.refresh_on_hit) --refreshing_;
  named_ -= at->second.blocks.size();
  const auto token = tokens_.find(name_of(terms.holder));
  if (--token->second.pins == 0) tokens_.erase(token);
  pins_.erase(at);
}

bool Pins::take_off(CacheLock& locked, const LeaseHolder& holder, EntryNumber entry) {
  settle(locked);
  const auto at = entries_.find(entry);
  if (at == entries_.end()) return false;
  std::vector<Number> of_holder;
  for (const Number number : at->second.pins) {
    if (is_same(pins_.at(number).terms.holder, holder)) of_holder.push_back(number);
  }
  for (const Number number : of_holder) {
    remove(locked, entry, number);
    Pin& pin = pins_.at(number);
    if (pin.live > 0 || !pin.is_listed) continue;
    by_id_.erase(pin.id);
    by_end_.erase({pin.expires_at, number});
    close(number);
  }
  if (!of_holder.empty()) ++changes_;
  return !of_holder.empty();
}

std::optional<Pins::Number> Pins::find(const PinId& id) const {
  const auto at = by_id_.find(id);
  return at == by_id_.end() ? std::nullopt : std::optional(at->second);
}

std::vector<Pins::Number> Pins::of_session(const LeaseHolder& holder,
                                           std::string_view session) const {
  std::vector<Number> numbers;
  for (const auto& [number, pin] : pins_) {
    if (pin.is_listed && pin.terms.session == session && is_same(pin.terms.holder, holder)) {
      numbers.push_back(number);
    }
  }
  return numbers;
}

void Pins::refresh(CacheLock& locked, EntryNumber entry) {
  const auto at = entries_.find(entry);
  if (at == entries_.end()) return;
  for (const Number number : at->second.pins) {
    Pin& pin = pins_.at(number);
    const TimePoint end = locked.now() + std::chrono::milliseconds(pin.terms.ttl_ms);
    if (!pin.terms.refresh_on_hit || !pin.is_listed || pin.expires_at >= end) continue;
    if (pin.expires_at <= locked.now()) continue;  // its time is over
    by_end_.erase({pin.expires_at, number});
    pin.expires_at = end;
    by_end_.emplace(end, number);
    refreshed_ = true;
  }
}

void Pins::settle_all(CacheLock& locked) {
  for (const BlockStore::Trail& trail : locked->store.take_unprotected()) {
    const auto known = entries_.find(trail.entry);
    if (known == entries_.end()) continue;
    const auto next = locked->store.follow(trail);
    if (!next) {
      forget(trail.entry);
      continue;
    }
    Pinned& pinned = known->second;
    const std::vector<LeaseHolder> holders = holders_of(pinned);
    for (const LeaseHolder& holder : holders) {
      tokens_.at(name_of(holder)).units[index_of(pinned.tier)] -= pinned.units;
    }
    const Place place{.tier = next->tier(), .units = locked->store.units_in(*next)};
    const bool has_room = fits(locked, place, holders);
    pinned.tier = place.tier;
    pinned.units = has_room ? place.units : 0;
    for (const LeaseHolder& holder : holders) {
      tokens_.at(name_of(holder)).units[index_of(pinned.tier)] += pinned.units;
    }
    if (has_room) {
      locked->store.protect(*next);
    } else {
      forget(trail.entry);
    }
  }
}

bool Pins::fits(CacheLock& locked, const Place& place, std::span<const LeaseHolder> holders) const {
  return fits_tier(locked, place) && std::ranges::all_of(holders, [&](const LeaseHolder& holder) {
           return fits_token(locked, place, holder);
         });
}

bool Pins::may_move(CacheLock& locked, SlotRef from) {
  if (!locked->store.record(from).is_protected) return true;
  settle(locked);
  const EntryNumber number = locked->store.record(from).owner;
  const auto slots = locked->store.entry(number).slots;
  for (const Tier tier : kTiers) {
    if (tier == from.tier() || slots[index_of(tier)] == kNoSlot) continue;
    const std::uint32_t units = locked->store.units_in({tier, slots[index_of(tier)]});
    return fits(locked, {.tier = tier, .units = units}, holders_of(entries_.at(number)));
  }
  return false;
}

bool Pins::is_of_others(const LeaseHolder& holder, EntryNumber entry) const {
  const auto at = entries_.find(entry);
  if (at == entries_.end()) return false;
  return std::ranges::any_of(at->second.pins, [&](Number number) {
    return !is_same(pins_.at(number).terms.holder, holder);
  });
}

std::optional<Pins::Number> Pins::next(Number from) const {
  const auto at = pins_.lower_bound(from);
  return at == pins_.end() ? std::nullopt : std::optional(at->first);
}

bool Pins::has(Number number, EntryNumber entry) const {
  const auto at = entries_.find(entry);
  return at != entries_.end() &&
         std::ranges::find(at->second.pins, number) != at->second.pins.end();
}

std::optional<Pins::Info> Pins::describe(Number number) const {
  const Pin& pin = pins_.at(number);
  if (!pin.is_listed) return std::nullopt;
  return Info{.id = pin.id,
              .holder = pin.terms.holder,
              .session = pin.terms.session,
              .blocks = pin.live,
              .bytes = pin.bytes,
              .expires_at = pin.expires_at};
}

std::optional<PinRecord> Pins::record_of(CacheLock& locked, Number number) const {
  const auto at = pins_.find(number);
  if (at == pins_.end() || !at->second.is_listed) return std::nullopt;
  const Pin& pin = at->second;
  PinRecord record{.id = pin.id,
                   .session = pin.terms.session,
                   .expires_at_unix_ms = locked.unix_ms_at(pin.expires_at),
                   .ttl_ms = pin.terms.ttl_ms,
                   .refresh_on_hit = pin.terms.refresh_on_hit};
  if (pin.terms.holder) record.holder = *pin.terms.holder;
  return record;
}

bool Pins::add_keys(CacheLock& locked, Number number, Range blocks,
                    std::vector<PinRecord::Key>& out) const {
  const auto at = pins_.find(number);
  if (at == pins_.end() || !at->second.is_listed) return false;
  const auto& all = at->second.blocks;
  const std::size_t end = std::min(all.size(), blocks.first + blocks.count);
  for (std::size_t i = blocks.first; i < end; ++i) {
    if (!has(number, all[i].entry)) continue;
    const BlockKey key = locked->store.key(all[i].entry);
    out.push_back({.bytes = std::string(key.view().as_text()), .kv_group = key.kv_group()});
  }
  return end < all.size();
}

void Pins::restore(CacheLock& locked, const PinRecord& record) {
  if (record.expires_at_unix_ms <= locked.unix_ms() || by_id_.contains(record.id)) return;
  LeaseHolder holder;
  if (record.holder) holder = std::make_shared<const std::string>(*record.holder);
  const auto number = open({.holder = std::move(holder),
                            .session = record.session,
                            .ttl_ms = record.ttl_ms,
                            .refresh_on_hit = record.refresh_on_hit});
  if (!number) return;
  for (const PinRecord::Key& key : record.keys) {
    if (key.bytes.empty() || key.bytes.size() > kMaxKeyBytes) continue;
    if (key.kv_group >= locked.core().config.kv_group_count()) continue;
    const EntryNumber entry =
        locked->store.find(KeyView::of_text(key.bytes, key.kv_group), locked.now());
    if (entry != kNoEntry) add(locked, *number, entry);
  }
  if (!start(locked, *number)) return;
  Pin& pin = pins_.at(*number);
  by_id_.erase(pin.id);
  by_end_.erase({pin.expires_at, *number});
  pin.id = record.id;
  pin.expires_at =
      locked.now() + std::chrono::milliseconds(record.expires_at_unix_ms - locked.unix_ms());
  by_id_.emplace(pin.id, *number);
  by_end_.emplace(pin.expires_at, *number);
}

}  // namespace cairn
