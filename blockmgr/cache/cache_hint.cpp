// Cache: hints on the expected reuse of blocks, without a use.
#include <algorithm>

#include "blockmgr/cache/cache_core.hpp"

namespace cairn {
namespace {

// Blocks moved in the order of eviction under one hold of the lock: some 150 ns each.
constexpr std::size_t kStepTold = 64;

// Applies a hint from the last block to the first, so that a prefix changes from its end.
// `slot_of(i)` returns the highest copy of the i-th block, or nullopt.
template <class SlotOf>
HintResult tell_from_end(Section& section, std::size_t blocks, const BlockStore::Telling& telling,
                         SlotOf&& slot_of) {
  HintResult result;
  const RequestNumber hint = section->store.begin_hint(telling.next_use);
  for (std::size_t i = blocks; i-- > 0;) {
    if (const std::size_t done = blocks - 1 - i; done > 0 && done % kStepTold == 0) {
      section.give_way();
      if (section->dropped) break;
    }
    const std::optional<SlotRef> at = slot_of(i);
    if (!at) {
      ++result.missing;
    } else if (section->store.tell_now(*at, telling, hint)) {
      ++result.blocks;
    } else {
      ++result.shared;
    }
  }
  return result;
}

}  // namespace

HintResult tell_session(Section& section, const Sessions::Name& name, NextUse next_use) {
  const auto known = section->sessions.find(name);
  const std::vector<BlockStore::Trail> trails(known.begin(), known.end());
  const BlockStore::Telling telling{.next_use = next_use,
                                    .user = section->leases.user_of(name.holder)};
  HintResult result = tell_from_end(section, trails.size(), telling, [&](std::size_t i) {
    return section->store.follow(trails[i]);
  });
  result.missing = 0;  // the client did not name these blocks
  return result;
}

Result<HintResult> Cache::hint(const HintRequest& request) {
  CacheCore& core = *core_;
  CAIRN_TRY(core.check_count(request.keys.size()));
  Section section(core, LockUse::lease);
  CAIRN_TRY(section.check_usable());
  section->counts.count(request.reuse);
  const NextUse next_use = request.reuse.next_use();
  if (request.session) {
    return tell_session(section, {request.holder, *request.session}, next_use);
  }
  const BlockStore::Telling telling{.next_use = next_use,
                                    .user = section->leases.user_of(request.holder)};
  return tell_from_end(
      section, request.keys.size(), telling, [&](std::size_t i) -> std::optional<SlotRef> {
        const EntryNumber entry = section->store.find(request.keys[i], section.now());
        if (entry == kNoEntry) return std::nullopt;
        return section->store.highest_copy(section->store.entry(entry));
      });
}

}  // namespace cairn
