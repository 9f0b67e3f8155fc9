#pragma once

#include <optional>

#include "blockmgr/cache/transfer_table.hpp"
#include "blockmgr/share/share_stats.hpp"
#include "memory/alloc/pinned_pool.hpp"

namespace cairn {

struct ShareContext {
  Communicator& communicator;
  PinnedPool& packing;
  TransferTable& transfers;
  AllShareCounters& counters;
  std::uint64_t piece_bytes = 0;
  std::uint32_t lease_ms = 0;  // of slots that are being received into
};

struct ShareOutcome {
  TransferState state = TransferState::done;
  // Why nothing more could be shared: the ranks are at different calls, or the group is broken.
  std::optional<Error> error = {};
  bool group_broken = false;
};

// This rank's part of an operation of a group, told to the transfer as it goes; the caller ends it.
// Blocks. Keys are taken in batches:
//
//   1. every rank says of each key whether it holds it, or has a slot for it
//   2. what somebody holds and somebody wants goes in pieces of many blocks, straight from and to
//      slots that the CPU reaches, through packing memory for others, checksums behind the blocks
//   3. what arrived whole is committed, with the parent that its owner told
//
// and at the end the ranks wait for each other. A key that is held already stays as it is.
ShareOutcome share_blocks(const ShareContext& context, const ShareRequest& request, TransferId id);

// The same of an all_reduce: the ranks compare what they are asked for, and then reduce their
// numbers. What came out is told to the transfer. Blocks.
ShareOutcome share_values(const ShareContext& context, const ShareRequest& request, TransferId id);

}  // namespace cairn
