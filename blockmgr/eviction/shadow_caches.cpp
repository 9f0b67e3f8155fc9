#include "blockmgr/eviction/shadow_caches.hpp"

#include <algorithm>

namespace cairn {

ShadowCaches::ShadowCaches(const Options& options)
    : policy_(make_eviction_policy({.eviction = options.eviction,
                                    .capacity_blocks = options.model_of_blocks != 0
                                                           ? options.model_of_blocks
                                                           : options.sizes.front().capacity_blocks,
                                    .max_requests = options.max_requests})),
      ghosts_(options.ghost_blocks) {
  for (const ShadowRoom::Size& size : options.sizes) {
    rooms_.emplace_back(*policy_, options.eviction, size);
  }
}

std::uint32_t ShadowCaches::request(const ShadowRequest& request) {
  const auto seen = static_cast<std::uint32_t>(request.blocks.size());
  const RequestNumber number = policy_->begin({.blocks = request.sample ? request.asked : seen,
                                               .unix_ms = request.unix_ms,
                                               .sample = request.sample});
  for (ShadowRoom& room : rooms_) room.begin(number);
  for (const std::uint64_t hash : request.blocks) ask(hash, number);
  unknown_blocks_ = policy_->ended(number, request.end);
  for (std::size_t i = seen; i-- > 0;) list({i, request.blocks[i]}, request.end.next_use);
  return hits(0);
}

// A block that no cache has room for is not used.
void ShadowCaches::ask(std::uint64_t hash, RequestNumber request) {
  std::optional<BlockHistory> known;
  for (ShadowRoom& room : rooms_) {
    const BlockHistory* const there = room.ask(hash);
    if (there != nullptr && !known) known = *there;
  }
  bool may_keep = false;
  for (ShadowRoom& room : rooms_) {
    if (const auto gone = room.make_room()) {
      const auto has_it = [&gone](const ShadowRoom& one) { return one.contains(gone->hash); };
      if (std::ranges::none_of(rooms_, has_it)) ghosts_.remember(gone->hash, gone->history);
    }
    may_keep = may_keep || room.may_keep();
  }
  if (!may_keep) return;
  BlockHistory block = known ? *known : ghosts_.recall(hash);
  if (policy_->touched(block, request)) block.is_hub = rooms_.front().asks_hub();
  for (ShadowRoom& room : rooms_) room.keep(hash, block);
}

// The hints `later` and `never` apply only to the request's last blocks that no other block
// follows.
void ShadowCaches::list(const Asked& asked, NextUse next_use) {
  const std::size_t number = asked.number;
  const ShadowRoom* first = nullptr;
  bool is_end = false;
  for (ShadowRoom& room : rooms_) {
    if (!room.holds(number)) continue;
    const bool ends_there = room.is_end(number);
    if (first != nullptr) continue;
    first = &room;
    is_end = ends_there;
  }
  if (first == nullptr) return;
  BlockHistory block = first->history(number);
  const bool is_hinted = is_end || expected_within_ms(next_use) > 0;
  // A block that is named twice is already listed.
  if (!first->is_listed(number)) policy_->listed(block, is_hinted ? next_use : NextUse::unknown);
  for (ShadowRoom& room : rooms_) {
    if (!room.holds(number)) {
      room.note_unkept(asked.hash, block);
    } else if (!room.is_listed(number)) {
      room.list(number, block);
    }
  }
}

std::uint64_t ShadowCaches::memory_bytes() const {
  std::uint64_t bytes = ghosts_.memory_bytes() + policy_->memory_bytes();
  for (const ShadowRoom& room : rooms_) bytes += sizeof(room) + room.memory_bytes();
  return bytes;
}

}  // namespace cairn
