#pragma once

#include <cstdint>
#include <map>
#include <unordered_map>
#include <vector>

#include "base/unique_function.hpp"
#include "blockmgr/index/slot_ref.hpp"
#include "blockmgr/index/types.hpp"
#include "blockmgr/transfer/piece_progress.hpp"

namespace cairn {

// Tracks which pieces of uncommitted blocks are written, and which keys commits have taken. Part of
// a cache's state, under its lock.
class BlockWrites {
 public:
  // Null if no write of the block has begun.
  PieceProgress* find(SlotRef at);
  PieceProgress& begin(SlotRef at, std::uint32_t pieces);  // returns an existing one unchanged
  void erase(SlotRef at) { progress_.erase(at.bits()); }
  void erase_unless_busy(SlotRef at);

  // While a commit has taken a key, other commits of that key wait until it gives the key up. This
  // keeps headers on disk from naming a key twice, or naming a block that was not kept.
  enum class Taking : std::uint8_t { taken, before, by_another };
  Taking take_key(const BlockKey& key, const void* owner);  // before: this owner has it
  bool is_taken(const BlockKey& key) const { return !taken_.empty() && taken_.contains(key); }
  void wait_for_key(const BlockKey& key, UniqueFunction<void()> ended);  // REQUIRES: it is taken
  // Returns the actions that waited for the key.
  std::vector<UniqueFunction<void()>> give_up_key(const BlockKey& key);

 private:
  std::unordered_map<std::uint32_t, PieceProgress> progress_;  // by SlotRef::bits
  struct Taken {
    const void* owner = nullptr;
    std::vector<UniqueFunction<void()>> waiting;
  };
  std::map<BlockKey, Taken> taken_;
};

}  // namespace cairn
