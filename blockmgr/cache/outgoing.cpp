#include "blockmgr/cache/outgoing.hpp"

#include <algorithm>
#include <string>

#include "base/assert.hpp"
#include "base/hex.hpp"
#include "blockmgr/cache/cache.hpp"
#include "blockmgr/core/cache_core.hpp"
#include "blockmgr/transfer/best_source.hpp"

namespace cairn {
namespace {

// Under one hold of the lock: up to 1 us each to find and pin, some 30 ns to release.
constexpr std::size_t kPinnedAtOnce = 8;
constexpr std::size_t kLetGoAtOnce = 128;

}  // namespace

Result<> Outgoing::pin(std::span<const KeyView> keys, Tier to, const Wants& wants) {
  CacheLock locked(*core_, LockUse::transfer);
  for (std::size_t i = 0; i < keys.size(); ++i) {
    if (i % kPinnedAtOnce == 0) {
      if (i > 0) locked.yield();
      CAIRN_TRY(locked.check_usable());
      locked->store.prefetch(keys.subspan(i, std::min(kPinnedAtOnce, keys.size() - i)));
    }
    const EntryNumber number = locked->store.find(keys[i], locked.now());
    if (number == kNoEntry) {
      return Error{ErrorCode::unknown_key,
                   "key " + to_hex(keys[i].bytes()) + " is not in cache " + core_->config.name};
    }
    const Entry& entry = locked->store.entry(number);
    if (wants) {
      Source present{.key = i, .metadata = locked->store.metadata(number)};
      present.parent = locked->store.key_before(number);
      if (!wants(present)) continue;
    }
    const auto source = best_source(entry, to);
    CAIRN_ASSERT(source, "a key without a copy was taken for present");
    slots_.push_back(*source);
    locked->store.pin(slots_.back());
  }
  return {};
}

void Outgoing::failed(std::size_t slot, const Error& error) {
  CacheLock locked(*core_, LockUse::transfer);
  const SlotRef at = slots_[slot];
  // The slot is pinned, so it cannot hold another block's bytes.
  const std::uint64_t generation = locked->store.record(at).generation;
  locked->transfers.drop_unreadable(locked, at, generation, error);
}

void Outgoing::let_go() {
  if (slots_.empty()) return;
  CacheLock locked(*core_, LockUse::transfer);
  for (std::size_t gone = 1; !slots_.empty(); ++gone) {
    locked->store.unpin(slots_.back());
    slots_.pop_back();
    if (gone % kLetGoAtOnce == 0) locked.yield();
  }
}

}  // namespace cairn
