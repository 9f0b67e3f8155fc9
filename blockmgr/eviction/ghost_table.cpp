#include "blockmgr/eviction/ghost_table.hpp"

#include <utility>

namespace cairn {

GhostTable::GhostTable(std::uint32_t capacity_blocks)
    : sets_(std::max<std::size_t>(1, (capacity_blocks + kPlaces - 1) / kPlaces)) {}

void GhostTable::remember(std::uint64_t key_hash, const BlockHistory& history) {
  if (!history.is_known()) return;
  if (leaving_count_ == kMostLeaving) put_first();
  prefetch(key_hash);
  leaving_[(first_leaving_ + leaving_count_++) % kMostLeaving] = {key_hash, history};
}

void GhostTable::put_first() {
  const auto& [key_hash, history] = leaving_[first_leaving_];
  first_leaving_ = (first_leaving_ + 1) % kMostLeaving;
  --leaving_count_;
  if (history.request - newest_ < 1U << 31) newest_ = history.request;
  Ghost* place = nullptr;
  for (Ghost& ghost : set_of(key_hash).ghosts) {
    if (!ghost.history.is_known()) {
      place = &ghost;
      break;
    }
    if (place == nullptr || newest_ - ghost.history.request > newest_ - place->history.request) {
      place = &ghost;
    }
  }
  if (!place->history.is_known()) ++size_;
  *place = {static_cast<std::uint32_t>(key_hash), history};
}

void GhostTable::put_all() {
  while (leaving_count_ > 0) put_first();
}

BlockHistory GhostTable::take(Ghost& ghost) {
  --size_;
  return std::exchange(ghost, {}).history;
}

}  // namespace cairn
