#pragma once

#include <chrono>
#include <memory>
#include <vector>

#include "transport/collective/communicator.hpp"
#include "transport/collective/link_socket.hpp"
#include "transport/collective/reduction_buffers.hpp"

namespace cairn {

// Uses one connection per other rank; `sockets` is indexed by rank and empty at this rank.
//
// A broadcast runs along the chain of ranks that starts at the root. Each rank forwards while it
// receives, so every byte crosses each rank's network once in each direction. A reduction runs up
// the chain piece by piece, and the result runs back. The operands therefore have a fixed order,
// and floating-point results are bit-identical on all ranks.
std::unique_ptr<Communicator> make_local_communicator(RankPlace place,
                                                      std::vector<LinkSocket> sockets,
                                                      std::chrono::milliseconds step_timeout,
                                                      std::shared_ptr<ReductionCounts> reductions);

// All ranks in one process, connected by Unix sockets. Returns unavailable if file descriptors run
// out.
Result<std::vector<std::unique_ptr<Communicator>>> make_local_group(
    std::uint32_t world_size, std::chrono::milliseconds step_timeout);

}  // namespace cairn
