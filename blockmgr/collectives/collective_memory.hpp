#pragma once

#include <optional>
#include <span>
#include <vector>

#include "blockmgr/cache/ingest.hpp"
#include "blockmgr/collectives/collective_headers.hpp"
#include "memory/alloc/pinned_pool.hpp"

namespace cairn {

// The memory for the blocks of one round of sharing, to read from and write to. Blocks in memory
// that the CPU reaches are used in place. So are blocks in device memory, if the communicator takes
// that and they lie in few pieces. The others go through one slot of packing memory, in canonical
// order.
class CollectiveMemory {
 public:
  struct Means {
    PinnedPool& packing;
    bool device_memory = false;  // the communicator takes it
  };
  CollectiveMemory(const Cache& cache, const Means& means) : cache_(cache), means_(means) {}

  // Call for all blocks of the round, before open(). Each returns the block's number here.
  std::size_t add_source(BlockReader& reader);
  std::size_t add_target(Ingest& ingest, std::size_t item);  // REQUIRES: the item is open
  std::size_t add_waste();                                   // bytes to receive and discard

  // Takes the packing memory, and reads blocks that are not used in place into it.
  Result<> open();
  std::span<const iovec> pieces(std::size_t block) const { return blocks_[block].pieces; }
  // The checksum of a source; its kind is `none` if the block could not be read.
  BlockChecksum checksum(std::size_t block) const;
  const std::optional<Error>& error(std::size_t block) const { return blocks_[block].error; }

  // Stores the targets that arrived whole. error() returns why a target was not stored.
  void store(std::span<const std::size_t> targets, std::span<const BlockChecksum> checksums);

 private:
  struct Block {
    BlockReader* reader = nullptr;
    Ingest* ingest = nullptr;  // for a target
    std::size_t item = 0;
    bool in_place = false;
    bool direct = false;  // in place, and no CPU reads it
    std::vector<iovec> pieces;
    std::optional<Error> error;
  };
  bool reaches(Tier tier) const;
  bool takes_directly(Tier tier) const;
  void fetch_all();

  const Cache& cache_;
  const Means means_;
  std::vector<Block> blocks_;
  std::optional<PinnedPool::Slot> slot_;
};

}  // namespace cairn
