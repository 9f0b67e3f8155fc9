// Hints on the expected reuse of blocks, without a use.
#include "blockmgr/cache/cache_hint.hpp"

#include <algorithm>

#include "blockmgr/core/cache_core.hpp"

namespace cairn {
namespace {

// Blocks moved in the order of eviction under one hold of the lock: some 150 ns each.
constexpr std::size_t kStepHinted = 64;

// Applies a hint from the last block to the first, so that a prefix changes from its end.
// `slot_of(i)` returns the highest copy of the i-th block, or nullopt.
template <class SlotOf>
HintResult hint_from_end(CacheLock& locked, std::size_t blocks, const BlockStore::UseHint& use_hint,
                         SlotOf&& slot_of) {
  HintResult result;
  const RequestNumber hint = locked->store.begin_hint(use_hint.next_use);
  for (std::size_t i = blocks; i-- > 0;) {
    if (const std::size_t done = blocks - 1 - i; done > 0 && done % kStepHinted == 0) {
      locked.yield();
      if (locked->dropped) break;
    }
    const std::optional<SlotRef> at = slot_of(i);
    if (!at) {
      ++result.missing;
    } else if (locked->store.hint_now(*at, use_hint, hint)) {
      ++result.blocks;
    } else {
      ++result.shared;
    }
  }
  return result;
}

}  // namespace

HintResult hint_session(CacheLock& locked, const Sessions::Name& name, NextUse next_use) {
  const auto known = locked->sessions.find(name);
  const std::vector<BlockStore::Trail> trails(known.begin(), known.end());
  const BlockStore::UseHint use_hint{.next_use = next_use,
                                     .user = locked->leases.user_of(name.holder)};
  HintResult result = hint_from_end(locked, trails.size(), use_hint,
                                    [&](std::size_t i) { return locked->store.follow(trails[i]); });
  result.missing = 0;  // the client did not name these blocks
  return result;
}

Result<HintResult> Cache::hint(const HintRequest& request) {
  CacheCore& core = *core_;
  CAIRN_TRY(core.check_count(request.keys.size()));
  CacheLock locked(core, LockUse::lease);
  CAIRN_TRY(locked.check_usable());
  locked->counts.count(request.reuse);
  const NextUse next_use = request.reuse.next_use();
  if (request.session) {
    return hint_session(locked, {request.holder, *request.session}, next_use);
  }
  const BlockStore::UseHint use_hint{.next_use = next_use,
                                     .user = locked->leases.user_of(request.holder)};
  return hint_from_end(
      locked, request.keys.size(), use_hint, [&](std::size_t i) -> std::optional<SlotRef> {
        const EntryNumber entry = locked->store.find(request.keys[i], locked.now());
        if (entry == kNoEntry) return std::nullopt;
        return locked->store.highest_copy(locked->store.entry(entry));
      });
}

}  // namespace cairn
