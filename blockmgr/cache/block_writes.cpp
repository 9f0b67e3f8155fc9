#include "blockmgr/cache/block_writes.hpp"

#include <algorithm>
#include <utility>

#include "base/assert.hpp"

namespace cairn {

bool KeyOrder::operator()(const BlockKey& a, const BlockKey& b) const {
  return std::ranges::lexicographical_compare(a.view().bytes(), b.view().bytes());
}

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

bool BlockWrites::wait_for_key(const BlockKey& key, UniqueFunction<void()>&& ended) {
  const auto taken = heading_.find(key);
  if (taken == heading_.end()) return false;
  taken->second.push_back(std::move(ended));
  return true;
}

std::vector<UniqueFunction<void()>> BlockWrites::give_up_key(const BlockKey& key) {
  auto taken = heading_.extract(key);
  CAIRN_ASSERT(!taken.empty(), "a commit gives up a key that it did not take");
  return std::move(taken.mapped());
}

}  // namespace cairn
