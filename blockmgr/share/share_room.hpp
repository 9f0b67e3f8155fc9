#pragma once

#include <optional>
#include <span>
#include <vector>

#include "blockmgr/cache/ingest.hpp"
#include "blockmgr/share/share_headers.hpp"
#include "memory/alloc/pinned_pool.hpp"

namespace cairn {

// The bytes of the blocks of one round of sharing: where they are read from and written to. Blocks
// in memory that the CPU reaches are used where they are, and so are those in a device's where the
// communicator takes that and they lie in few pieces; the others go through one slot of packing
// memory, in canonical order.
class ShareRoom {
 public:
  struct Means {
    PinnedPool& packing;
    bool device_memory = false;  // the communicator takes it
  };
  ShareRoom(const Cache& cache, const Means& means) : cache_(cache), means_(means) {}

  // Announce all that the round needs; each answers the block's number here.
  std::size_t add_source(BlockReader& reader);
  std::size_t add_target(Ingest& ingest, std::size_t item);  // REQUIRES: it is open
  std::size_t add_waste();  // bytes that only pass through

  // Takes the packing memory, and reads into it what is not read in place.
  Result<> open();
  std::span<const iovec> pieces(std::size_t block) const { return blocks_[block].pieces; }
  // Of a source; of no kind if it could not be read.
  BlockChecksum checksum(std::size_t block) const;
  const std::optional<Error>& error(std::size_t block) const { return blocks_[block].error; }

  // Puts the targets that came whole where they belong; error() tells of each that did not get
  // there.
  void store(std::span<const std::size_t> targets, std::span<const BlockChecksum> checksums);

 private:
  struct Block {
    BlockReader* reader = nullptr;
    Ingest* ingest = nullptr;  // of a target
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
