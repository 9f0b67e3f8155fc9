#pragma once

#include <chrono>
#include <memory>
#include <vector>

#include "transport/collective/communicator.hpp"
#include "transport/collective/link_socket.hpp"
#include "transport/collective/reduction_buffers.hpp"

namespace cairn {

// Over connections to every other rank (this rank's own is empty).
//
// A broadcast runs along the chain of ranks that begins at its root, each rank passing on what it
// has while more comes in: every byte crosses each rank's network once each way. A reduction runs
// up that chain piece by piece and its result back along it, so that the order of the operands, and
// with it every bit of a floating-point result, is the same on all ranks.
std::unique_ptr<Communicator> make_local_communicator(RankPlace place,
                                                      std::vector<LinkSocket> sockets,
                                                      std::chrono::milliseconds step_timeout,
                                                      std::shared_ptr<ReductionCounts> reductions);

// The ranks of one process, connected by Unix sockets. unavailable where there are no more
// descriptors.
Result<std::vector<std::unique_ptr<Communicator>>> make_local_group(
    std::uint32_t world_size, std::chrono::milliseconds step_timeout);

}  // namespace cairn
