#include "blockmgr/cache/intake.hpp"

#include <utility>

#include "base/assert.hpp"
#include "blockmgr/cache/block_pieces.hpp"
#include "blockmgr/cache/cache_core.hpp"

namespace cairn {
namespace {

// Slots under one hold of the lock: some 300 ns each to check and pin, or to tell as written.
constexpr std::size_t kSlotsAtOnce = 48;

}  // namespace

void Intake::fail_all(const Error& error) {
  for (Item& item : items_) item.error = error;
}

void Intake::allocate(const Slots& slots, UniqueFunction<void(bool)> ended) {
  cache_->allocate({.count = static_cast<std::uint32_t>(items_.size()),
                    .tier = slots.tier,
                    .lease_ms = core_->options().max_lease_ms,
                    .quota = slots.quota,
                    .pins = slots.pins,
                    .holder = slots.holder},
                   [this, ended = std::move(ended)](Result<Allocation> allocation) mutable {
                     auto pinned = allocated(std::move(allocation));
                     if (!pinned) fail_all(pinned.error());
                     ended(pinned.has_value());
                   });
}

Result<> Intake::allocated(Result<Allocation> allocation) {
  if (!allocation) return std::move(allocation).error();
  lease_ = allocation->lease;
  for (std::size_t i = 0; i < items_.size(); ++i) items_[i].block.handle = allocation->blocks[i];
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
  for (std::size_t i = 0; i < items_.size(); ++i) {
    if (i > 0 && i % kSlotsAtOnce == 0) section.give_way();
    auto pinned = pin(items_[i]);
    if (pinned) continue;
    while (i-- > 0) section->store.unpin(items_[i].slot());
    return pinned;
  }
  on_their_way_ = items_.size();
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
