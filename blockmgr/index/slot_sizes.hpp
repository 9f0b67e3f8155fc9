#pragma once

#include <cstdint>
#include <vector>

#include "blockmgr/index/types.hpp"

namespace cairn {

// The room that blocks take in a tier. It is counted in units: slot n begins at unit n, so a slot's
// place follows from its number alone, whatever the size of its block. A block covers the slots
// after its own, too, and these have no block of their own.
struct SlotSizes {
  std::uint64_t unit_bytes = 0;                 // with the header, on disk
  std::vector<std::uint32_t> block_units = {};  // by KV group; empty: each block takes one
  // A slab holds blocks of one size, and no block lies in two slabs.
  std::uint32_t slab_units = 1;

  bool are_several() const { return !block_units.empty(); }
  std::uint32_t units_of(KvGroupNumber group) const {
    return are_several() ? block_units[group] : 1;
  }
};

// Chooses units and slabs for blocks of these sizes, so that little room is lost. Units are
// multiples of `alignment`, unless all blocks are multiples of the smallest.
SlotSizes choose_slot_sizes(const std::vector<std::uint64_t>& block_bytes, std::uint64_t alignment);

}  // namespace cairn
