#pragma once

#include "blockmgr/index/block_store.hpp"
#include "transport/io/slot_header.hpp"

namespace cairn {

class CacheLock;

// Returns the header that a disk slot gets when it holds this block.
SlotHeader header_of(CacheLock& locked, SlotRef at, const NewBlock& block);
// Returns the header for another copy of a block. Empty if the source is no longer committed.
struct Copied {
  SlotRef source;
  SlotRef destination;
};
SlotHeader header_of_copy(CacheLock& locked, Copied copy);

}  // namespace cairn
