#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <unordered_map>

#include "blockmgr/index/slot_ref.hpp"
#include "blockmgr/index/types.hpp"

namespace cairn {

class CacheLock;

// Blocks that are written in parts (head shards) and lack some of them. A key has at most one, so
// each writer of a part of the key finds the others' parts. Which parts are there is noted in
// BlockWrites. Part of a cache's state, under its lock.
class PartialBlocks {
 public:
  // A lease of the server's own that holds partial blocks. While requests write into them it lasts
  // as long as those; after that, until no part has come for partial_block_ms.
  struct Keeper {
    LeaseId lease;
    std::uint32_t writers = 0;  // requests
    std::uint32_t blocks = 0;   // partial ones
    std::uint64_t number = 0;   // in the order of age, once it has a block
  };
  struct Partial {
    SlotRef at;
    std::shared_ptr<Keeper> keeper;
    bool completing = false;  // it has all its parts, and a commit gives it its key
  };

  bool empty() const { return by_key_.empty(); }
  Partial* find(const BlockKey& key);  // null if there is none
  // REQUIRES: the keeper holds the uncommitted slot; the key has no partial block.
  void add(const BlockKey& key, Partial partial);
  // Call when a slot is committed or freed; it need not be a partial block's.
  void remove(SlotRef at);
  // Drops blocks that no request writes to, those that were begun first, until the tier has `units`
  // slots more or there are no more such blocks.
  void give_way(CacheLock& locked, Tier tier, std::uint64_t units);

  static void enter(CacheLock& locked, Keeper& keeper);
  // Ends a keeper's lease if it keeps nothing.
  static void leave(CacheLock& locked, Keeper& keeper);

 private:
  std::map<BlockKey, Partial> by_key_;
  std::unordered_map<std::uint32_t, BlockKey> keys_;          // by SlotRef::bits
  std::map<std::uint64_t, std::shared_ptr<Keeper>> keepers_;  // those with blocks, by number
  std::uint64_t last_number_ = 0;
};

}  // namespace cairn
