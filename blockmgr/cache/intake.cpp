#include "blockmgr/cache/intake.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "base/assert.hpp"
#include "blockmgr/cache/block_pieces.hpp"
#include "blockmgr/cache/cache_core.hpp"

namespace cairn {
namespace {

// Slots under one hold of the lock: some 300 ns each to check and pin, or to tell as written.
constexpr std::size_t kSlotsAtOnce = 48;
// What no match reaches takes the place of one block in so many of its tier, and no more.
constexpr std::uint32_t kCutOffShare = 16;

}  // namespace

void Intake::fail_all(const Error& error) {
  for (Item& item : items_) item.error = error;
}

void Intake::ask(const Slots& slots, std::size_t count,
                 UniqueFunction<void(Result<Allocation>)> answer) {
  cache_->allocate({.count = static_cast<std::uint32_t>(count),
                    .tier = slots.tier,
                    .lease_ms = core_->options().max_lease_ms,
                    .takes_fewer = true,
                    .quota = slots.quota,
                    .pins = slots.pins,
                    .holder = slots.holder},
                   std::move(answer));
}

Intake::Rooms Intake::hold_parents(Tier tier) {
  Section section(*core_, LockUse::transfer);
  const SlotPool& pool = section->store.pool(tier);
  const std::size_t of_cut_off =
      std::max(pool.free_count() + pool.cut_off_count(), std::max(1u, pool.limit() / kCutOffShare));
  Rooms rooms{.first = items_.size(), .in_place = std::min(items_.size(), of_cut_off)};
  for (std::size_t i = 0; i < items_.size(); ++i) {
    if (i > 0 && i % kSlotsAtOnce == 0) section.give_way();
    if (!items_[i].block.parent) continue;
    const EntryNumber parent = section->store.find(*items_[i].block.parent, section.now());
    if (parent == kNoEntry || section->store.entry(parent).cut_off != 0) {
      if (i == 0) rooms.first = rooms.in_place;
      continue;
    }
    parents_.push_back(section->store.highest_copy(section->store.entry(parent)));
    section->store.pin_in_place(parents_.back());
  }
  return rooms;
}

bool Intake::let_parents_go() {
  if (parents_.empty()) return false;
  Section section(*core_, LockUse::transfer);
  for (std::size_t gone = 1; !parents_.empty(); ++gone) {
    section->store.unpin_in_place(parents_.back());
    parents_.pop_back();
    if (gone % kSlotsAtOnce == 0) section.give_way();
  }
  return true;
}

void Intake::allocate(const Slots& slots, UniqueFunction<void(bool)> ended) {
  const Rooms rooms = hold_parents(slots.tier);
  auto end = [this, ended = std::move(ended)](Result<Allocation> allocation) mutable {
    auto pinned = allocated(std::move(allocation));
    if (!pinned) fail_all(pinned.error());
    ended(pinned.has_value());
  };
  ask(slots, rooms.first,
      [this, slots, rooms, end = std::move(end)](Result<Allocation> allocation) mutable {
        const bool were_held = let_parents_go();
        const bool none = !allocation && allocation.error().code == ErrorCode::no_capacity;
        if (!none || !were_held) return end(std::move(allocation));
        ask(slots, rooms.in_place, std::move(end));
      });
}

Result<> Intake::allocated(Result<Allocation> allocation) {
  if (!allocation) return std::move(allocation).error();
  lease_ = allocation->lease;
  granted_ = allocation->blocks.size();
  for (std::size_t i = 0; i < granted_; ++i) items_[i].block.handle = allocation->blocks[i];
  for (std::size_t i = granted_; i < items_.size(); ++i) {
    items_[i].error = Error{ErrorCode::no_capacity, "there is room for the " +
                                                        std::to_string(granted_) +
                                                        " blocks before it only"};
  }
  return pin_all();
}

// What the lease lost meanwhile is somebody else's; what is pinned stays.
Result<> Intake::pin_all() {
  Section section(*core_, LockUse::transfer);
  const auto pin = [&](const Item& item) -> Result<> {
    auto lease = section->leases.live(section, *lease_);
    if (!lease) return std::move(lease).error();
    auto at = section->leases.uncommitted(section, *lease, item.block.handle);
    if (!at) return std::move(at).error();
    section->store.pin(*at);
    return {};
  };
  for (std::size_t i = 0; i < granted_; ++i) {
    if (i > 0 && i % kSlotsAtOnce == 0) section.give_way();
    auto pinned = pin(items_[i]);
    if (pinned) continue;
    while (i-- > 0) section->store.unpin(items_[i].slot());
    return pinned;
  }
  on_their_way_ = granted_;
  return {};
}

bool Intake::copied(std::span<const std::size_t> items) {
  Section section(*core_, LockUse::transfer);
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (i > 0 && i % kSlotsAtOnce == 0) section.give_way();
    Item& item = items_[items[i]];
    const SlotRef at = item.slot();
    if (section->store.record(at).gone && !item.error) {
      item.error = Error{ErrorCode::lease_expired, "the lease ended during the copy"};
    }
    if (!item.error) {
      const auto all = piece_range(core_->config.shape, std::nullopt);
      section->writes.begin(at, all.count).set_written(all);
    }
    section->store.unpin(at);
  }
  CAIRN_ASSERT(on_their_way_ >= items.size(), "a slot that was unpinned twice may be another's");
  on_their_way_ -= items.size();
  return on_their_way_ == 0;
}

void Intake::commit(UniqueFunction<void()> ended) {
  std::vector<std::size_t> whole;
  std::vector<CommitBlock> blocks;
  for (std::size_t i = 0; i < items_.size(); ++i) {
    if (items_[i].error) continue;
    whole.push_back(i);
    blocks.push_back(items_[i].block);
  }
  if (blocks.empty()) return ended();
  cache_->commit(*lease_, std::move(blocks),
                 [this, whole = std::move(whole), ended = std::move(ended)](
                     const Result<std::vector<CommitStatus>>& statuses) mutable {
                   committed(whole, statuses);
                   ended();
                 });
}

void Intake::committed(const std::vector<std::size_t>& items,
                       const Result<std::vector<CommitStatus>>& statuses) {
  for (std::size_t i = 0; i < items.size(); ++i) {
    Item& item = items_[items[i]];
    if (!statuses) {
      item.error = statuses.error();
    } else {
      item.duplicate = (*statuses)[i] == CommitStatus::duplicate;
    }
  }
}

void Intake::release() {
  if (lease_) static_cast<void>(cache_->release(*std::exchange(lease_, std::nullopt), {}));
}

}  // namespace cairn
