#include "transport/collective/local_communicator.hpp"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>

#include "base/pieces.hpp"
#include "transport/collective/peer_links.hpp"
#include "transport/collective/reduce.hpp"

namespace cairn {
namespace {

// Pipeline step of a reduction. Small enough that several steps are in flight on a long chain and
// that each is still in the CPU cache when it is added.
constexpr std::uint64_t kReduceStepBytes = 256 * 1024;

using Flow = PeerLinks::Flow;
using Topic = PeerLinks::Topic;

// REQUIRES: both sides have the same total size.
void copy_pieces(std::span<const iovec> from, std::span<const iovec> to) {
  std::size_t source = 0;
  std::size_t source_at = 0;
  for (const iovec& piece : to) {
    for (std::size_t at = 0; at < piece.iov_len;) {
      const std::size_t size = std::min(piece.iov_len - at, from[source].iov_len - source_at);
      std::memmove(static_cast<char*>(piece.iov_base) + at,
                   static_cast<const char*>(from[source].iov_base) + source_at, size);
      at += size;
      source_at += size;
      while (source < from.size() && source_at == from[source].iov_len) {
        ++source;
        source_at = 0;
      }
    }
  }
}

class LocalCommunicator final : public Communicator {
 public:
  LocalCommunicator(RankPlace place, std::vector<LinkSocket> sockets,
                    std::chrono::milliseconds step_timeout,
                    std::shared_ptr<ReductionCounts> reductions)
      : links_(place, std::move(sockets), step_timeout), reductions_(std::move(reductions)) {}

  std::string_view name() const override { return "local"; }
  RankPlace place() const override { return links_.place(); }

  Result<> all_reduce(const AllReduce& call) override;
  Result<> all_gather(const AllGather& call) override;
  Result<> broadcast(const Broadcast& call) override;
  Result<> exchange(std::span<const Message> messages) override;
  Result<> finalize() override;
  void abort(const Error& why) override { links_.abort(why); }

 private:
  std::uint32_t rank() const { return links_.place().rank; }
  std::uint32_t world() const { return links_.place().world_size; }
  Result<> check_rank(std::uint32_t wanted, std::string_view what) const;
  Result<> pass_along(PeerLinks::Subject subject, const Broadcast& call);

  PeerLinks links_;
  ReductionBuffers<std::vector<std::byte>> reductions_;
};

Result<> LocalCommunicator::check_rank(std::uint32_t wanted, std::string_view what) const {
  if (wanted < world()) return {};
  return Error{ErrorCode::out_of_range, std::string(what) + " is " + std::to_string(wanted) +
                                            ", not below " + std::to_string(world())};
}

// Along the chain root, root + 1, ...; each rank forwards while it still receives.
Result<> LocalCommunicator::pass_along(PeerLinks::Subject subject, const Broadcast& call) {
  const std::uint32_t place_in_chain = (rank() + world() - call.root) % world();
  std::vector<Flow> flows;
  if (place_in_chain > 0) {
    flows.push_back({.way = Flow::Way::in,
                     .peer = (rank() + world() - 1) % world(),
                     .pieces = {call.pieces.begin(), call.pieces.end()}});
  }
  if (place_in_chain + 1 < world()) {
    flows.push_back({.way = Flow::Way::out,
                     .peer = (rank() + 1) % world(),
                     .pieces = {call.pieces.begin(), call.pieces.end()},
                     .forwards = place_in_chain > 0});
  }
  return links_.run(subject, flows);
}

Result<> LocalCommunicator::broadcast(const Broadcast& call) {
  CAIRN_TRY(check_rank(call.root, "root"));
  return pass_along({.topic = Topic::broadcast, .detail = call.root}, call);
}

Result<> LocalCommunicator::all_gather(const AllGather& call) {
  const std::uint64_t size = call.elements.size_bytes();
  const PeerLinks::Subject subject{.topic = Topic::all_gather,
                                   .detail = static_cast<std::uint32_t>(call.elements.type)};
  if (size > 0) std::memmove(call.destination + rank() * size, call.source, size);
  const std::uint32_t next = (rank() + 1) % world();
  const std::uint32_t previous = (rank() + world() - 1) % world();
  // Ring: in each step every rank forwards what it received in the step before.
  for (std::uint32_t step = 0; step + 1 < world(); ++step) {
    const std::uint32_t giving = (rank() + world() - step) % world();
    const std::uint32_t getting = (previous + world() - step) % world();
    const std::vector<Flow> flows = {
        {.way = Flow::Way::out,
         .peer = next,
         .pieces = {piece_of(call.destination + giving * size, size)}},
        {.way = Flow::Way::in,
         .peer = previous,
         .pieces = {piece_of(call.destination + getting * size, size)}}};
    CAIRN_TRY(links_.run(subject, flows));
  }
  return {};
}

// Rank 0 sends its values to rank 1, which adds its own, and so on. Pipelined: a rank adds one
// piece while it receives the next and sends the previous. The last rank then has the result.
Result<> LocalCommunicator::all_reduce(const AllReduce& call) {
  const std::uint64_t size = call.elements.size_bytes();
  const DataType type = call.elements.type;
  const PeerLinks::Subject subject{
      .topic = Topic::all_reduce,
      .detail = static_cast<std::uint32_t>(type) << 8 | static_cast<std::uint32_t>(call.reduction)};
  if (size > 0 && call.source != call.destination) {
    std::memmove(call.destination, call.source, size);
  }
  const bool first = rank() == 0;
  const bool last = rank() + 1 == world();
  const std::uint64_t steps =
      std::max<std::uint64_t>(1, (size + kReduceStepBytes - 1) / kReduceStepBytes);
  const auto part = [&](std::uint64_t step) {
    const std::uint64_t begin = std::min(size, step * kReduceStepBytes);
    return std::span(call.destination + begin, std::min(kReduceStepBytes, size - begin));
  };
  std::span<std::byte> scratch;
  if (!first) {
    const auto buffer = reductions_.take(
        ReductionBuffers<std::vector<std::byte>>::Key::of(call), std::min(size, kReduceStepBytes),
        [](std::uint64_t bytes) { return Result<std::vector<std::byte>>(bytes); });
    scratch = **buffer;
  }
  const auto pass_on = [&]() -> Result<> {
    // A piece goes out one step after it came in.
    for (std::uint64_t step = 0; step <= steps; ++step) {
      std::vector<Flow> flows;
      const bool gets = !first && step < steps;
      if (gets) {
        flows.push_back({.way = Flow::Way::in,
                         .peer = rank() - 1,
                         .pieces = {piece_of(scratch.data(), part(step).size())}});
      }
      if (!last && step > 0) {
        const auto done = part(step - 1);
        flows.push_back({.way = Flow::Way::out,
                         .peer = rank() + 1,
                         .pieces = {piece_of(done.data(), done.size())}});
      }
      CAIRN_TRY(links_.run(subject, flows));
      if (gets) {
        const auto sums = part(step);
        // The lower rank's value comes first, so that operands are in rank order.
        reduce({.accumulator = scratch.first(sums.size()),
                .values = sums,
                .type = type,
                .reduction = call.reduction});
        std::copy_n(scratch.begin(), sums.size(), sums.begin());  // no-op at size 0
      }
    }
    return {};
  };
  auto passed_on = pass_on();
  reductions_.rest();
  CAIRN_TRY(std::move(passed_on));
  if (last && call.reduction == Reduction::avg) {
    average(std::span(call.destination, size), type, world());
  }
  const iovec whole = piece_of(call.destination, size);
  return pass_along(subject, {.root = world() - 1, .pieces = {&whole, 1}});
}

Result<> LocalCommunicator::exchange(std::span<const Message> messages) {
  // All messages to one rank, or from one rank, form one flow.
  std::vector<Flow> outgoing(world());
  std::vector<Flow> incoming(world());
  std::vector<bool> used_out(world());
  std::vector<bool> used_in(world());
  for (const Message& message : messages) {
    CAIRN_TRY(check_rank(message.peer, "peer"));
    const bool out = message.kind == Message::Kind::send;
    Flow& flow = (out ? outgoing : incoming)[message.peer];
    (out ? used_out : used_in)[message.peer] = true;
    flow.way = out ? Flow::Way::out : Flow::Way::in;
    flow.peer = message.peer;
    flow.pieces.insert(flow.pieces.end(), message.pieces.begin(), message.pieces.end());
  }
  const std::uint64_t to_itself = total_bytes(outgoing[rank()].pieces);
  if (to_itself != total_bytes(incoming[rank()].pieces)) {
    return Error{ErrorCode::impossible, "rank " + std::to_string(rank()) + " sends itself " +
                                            std::to_string(to_itself) + " bytes and receives " +
                                            std::to_string(total_bytes(incoming[rank()].pieces))};
  }
  if (to_itself > 0) copy_pieces(outgoing[rank()].pieces, incoming[rank()].pieces);
  std::vector<Flow> flows;
  for (std::uint32_t peer = 0; peer < world(); ++peer) {
    if (peer == rank()) continue;
    if (used_out[peer]) flows.push_back(std::move(outgoing[peer]));
    if (used_in[peer]) flows.push_back(std::move(incoming[peer]));
  }
  return links_.run({.topic = Topic::exchange}, flows);
}

Result<> LocalCommunicator::finalize() {
  std::vector<Flow> flows;
  for (std::uint32_t peer = 0; peer < world(); ++peer) {
    if (peer == rank()) continue;
    flows.push_back({.way = Flow::Way::out, .peer = peer, .pieces = {}});
    flows.push_back({.way = Flow::Way::in, .peer = peer, .pieces = {}});
  }
  return links_.run({.topic = Topic::finalize}, flows);
}

}  // namespace

std::unique_ptr<Communicator> make_local_communicator(RankPlace place,
                                                      std::vector<LinkSocket> sockets,
                                                      std::chrono::milliseconds step_timeout,
                                                      std::shared_ptr<ReductionCounts> reductions) {
  return std::make_unique<LocalCommunicator>(place, std::move(sockets), step_timeout,
                                             std::move(reductions));
}

Result<std::vector<std::unique_ptr<Communicator>>> make_local_group(
    std::uint32_t world_size, std::chrono::milliseconds step_timeout) {
  std::vector<std::vector<LinkSocket>> sockets(world_size);
  for (auto& of_rank : sockets) of_rank.resize(world_size);
  for (std::uint32_t a = 0; a < world_size; ++a) {
    for (std::uint32_t b = a + 1; b < world_size; ++b) {
      int ends[2];
      if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0) {
        return Error{ErrorCode::unavailable, std::string("socketpair: ") + std::strerror(errno)};
      }
      sockets[a][b] = LinkSocket(ends[0]);
      sockets[b][a] = LinkSocket(ends[1]);
    }
  }
  std::vector<std::unique_ptr<Communicator>> group;
  for (std::uint32_t rank = 0; rank < world_size; ++rank) {
    group.push_back(make_local_communicator({.rank = rank, .world_size = world_size},
                                            std::move(sockets[rank]), step_timeout,
                                            std::make_shared<ReductionCounts>()));
  }
  return group;
}

}  // namespace cairn
