#pragma once

#include <cstdint>
#include <map>
#include <unordered_map>
#include <vector>

#include "base/unique_function.hpp"
#include "blockmgr/cache/piece_progress.hpp"
#include "blockmgr/index/slot_ref.hpp"
#include "blockmgr/index/types.hpp"

namespace cairn {

struct KeyOrder {
  bool operator()(const BlockKey& a, const BlockKey& b) const;
};

// What is written into uncommitted blocks, and which keys commits are writing into headers on disk.
// Part of a cache's state, under its lock.
class BlockWrites {
 public:
  // Null where nobody has begun to write the block.
  PieceProgress* find(SlotRef at);
  PieceProgress& begin(SlotRef at, std::uint32_t pieces);  // or the one that there is
  void erase(SlotRef at) { progress_.erase(at.bits()); }
  void erase_unless_busy(SlotRef at);

  // A key that a commit has taken is that one's until it gives it up: others wait for its end. No
  // two headers on disk are to name one key, and none one whose block did not stay.
  enum class Taking : std::uint8_t { taken, before, by_another };
  Taking take_key(const BlockKey& key, const void* owner);  // before: by the same owner
  bool is_taken(const BlockKey& key) const { return !taken_.empty() && taken_.contains(key); }
  void wait_for_key(const BlockKey& key, UniqueFunction<void()> ended);  // REQUIRES: it is taken
  // Those who waited for it.
  std::vector<UniqueFunction<void()>> give_up_key(const BlockKey& key);

 private:
  std::unordered_map<std::uint32_t, PieceProgress> progress_;  // by SlotRef::bits
  struct Taken {
    const void* owner = nullptr;
    std::vector<UniqueFunction<void()>> waiting;
  };
  std::map<BlockKey, Taken, KeyOrder> taken_;
};

}  // namespace cairn
