#pragma once

#include "blockmgr/index/block_store.hpp"
#include "transport/io/slot_header.hpp"

namespace cairn {

class Section;

// What a slot of the disk tier says of its bytes once they are this block's.
SlotHeader header_of(Section& section, SlotRef at, const NewBlock& block);
// The same for a further copy of a key; nobody's where the key went meanwhile.
struct Copied {
  SlotRef source;
  SlotRef destination;
};
SlotHeader header_of_copy(Section& section, Copied copy);

}  // namespace cairn
