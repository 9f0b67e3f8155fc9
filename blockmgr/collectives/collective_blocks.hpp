#pragma once

#include <optional>

#include "blockmgr/collectives/collective_stats.hpp"
#include "blockmgr/transfer/transfer_table.hpp"
#include "memory/alloc/pinned_pool.hpp"

namespace cairn {

struct CollectiveContext {
  Communicator& communicator;
  PinnedPool& packing;
  TransferTable& transfers;
  AllCollectiveCounters& counters;
  std::uint64_t piece_bytes = 0;
  std::uint32_t lease_ms = 0;  // of the operation's lease on its blocks
};

struct CollectiveOutcome {
  TransferState state = TransferState::done;
  // Why sharing stopped: the ranks' calls differ, or the group is broken.
  std::optional<Error> error = {};
  bool group_broken = false;
};

// Runs this rank's part of a group operation and reports progress to the transfer, which the caller
// ends. Blocks. Keys are processed in batches:
//
// 1. Each rank reports for each key whether it holds it, or has a slot for it.
// 2. Blocks that one rank holds and another wants are sent in pieces of many blocks: straight from
//    and to slots that the CPU reaches, through packing memory for others. Their checksums follow.
// 3. Blocks that arrived whole are committed, with the parent that their owner sent.
//
// At the end the ranks wait for each other. A key that is already held does not change.
CollectiveOutcome exchange_blocks(const CollectiveContext& context,
                                  const CollectiveRequest& request, TransferId id);

// The same for all_reduce: the ranks compare their calls, and then reduce their numbers. Reports
// the result to the transfer. Blocks.
CollectiveOutcome exchange_values(const CollectiveContext& context,
                                  const CollectiveRequest& request, TransferId id);

}  // namespace cairn
