#include "blockmgr/core/block_writes.hpp"

#include <algorithm>
#include <utility>

#include "base/assert.hpp"

namespace cairn {

PieceProgress* BlockWrites::find(SlotRef at) {
  if (progress_.empty()) return nullptr;
  const auto found = progress_.find(at.bits());
  return found == progress_.end() ? nullptr : &found->second;
}

PieceProgress& BlockWrites::begin(SlotRef at, std::uint32_t pieces) {
  return progress_.try_emplace(at.bits(), pieces).first->second;
}

void BlockWrites::erase_unless_busy(SlotRef at) {
  if (PieceProgress* const progress = find(at); progress != nullptr && !progress->busy()) erase(at);
}

BlockWrites::Taking BlockWrites::take_key(const BlockKey& key, const void* owner) {
  const auto [at, is_new] = taken_.try_emplace(key);
  if (is_new) {
    at->second.owner = owner;
    return Taking::taken;
  }
  return at->second.owner == owner ? Taking::before : Taking::by_another;
}

void BlockWrites::wait_for_key(const BlockKey& key, UniqueFunction<void()> ended) {
  const auto at = taken_.find(key);
  CAIRN_ASSERT(at != taken_.end(), "nobody would end the wait for a key");
  at->second.waiting.push_back(std::move(ended));
}

std::vector<UniqueFunction<void()>> BlockWrites::give_up_key(const BlockKey& key) {
  auto given_up = taken_.extract(key);
  CAIRN_ASSERT(!given_up.empty(), "a commit gives up a key that it did not take");
  return std::move(given_up.mapped().waiting);
}

}  // namespace cairn
