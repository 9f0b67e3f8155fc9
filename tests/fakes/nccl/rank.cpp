#include "tests/fakes/nccl/rank.hpp"

#include <sys/uio.h>

#include <chrono>
#include <cstring>
#include <utility>

namespace cairn::fakes {
namespace {

// Like in the fake CUDA runtime: one in kOneLateOf calls is delayed, by at most kMostDelay_us.
constexpr std::uint64_t kOneLateOf = 4;
constexpr std::uint64_t kMostDelay_us = 200;

const Error kAborted{ErrorCode::cancelled, "the communicator was aborted"};

bool is_message(const RankCall& call) {
  return call.kind == RankCall::Kind::send || call.kind == RankCall::Kind::receive;
}

}  // namespace

Rank::Rank(Collectives& sockets, JoinRequest request)
    : world_size_(static_cast<int>(request.place.world_size)), random_(request.place.rank) {
  // NCCL has no deadline.
  request.join_timeout = std::chrono::hours(1);
  request.step_timeout = std::chrono::hours(1);
  thread_ = std::thread([this, &sockets, wanted = std::move(request)]() mutable {
    join(sockets, std::move(wanted));
  });
}

Rank::~Rank() {
  abort();
  thread_.join();
}

void Rank::join(Collectives& sockets, JoinRequest request) {
  auto joined = sockets.join(std::move(request), stop_, [] {});
  if (!joined) return failed(joined.error());
  const std::lock_guard lock(mutex_);
  communicator_ = std::move(*joined);
  if (aborted_) communicator_->abort(kAborted);
  if (state_ == ncclInProgress) state_ = ncclSuccess;
}

ncclResult_t Rank::state() const {
  const std::lock_guard lock(mutex_);
  return state_;
}

void Rank::fail(ncclResult_t error) {
  const std::lock_guard lock(mutex_);
  if (state_ == ncclSuccess || state_ == ncclInProgress) state_ = error;
}

void Rank::failed(const Error& error) {
  fail(error.code == ErrorCode::state_conflict ? ncclInvalidUsage : ncclRemoteError);
}

void Rank::abort() {
  stop_.stop();
  const std::lock_guard lock(mutex_);
  aborted_ = true;
  if (communicator_) communicator_->abort(kAborted);
}

void Rank::finalize() {
  {
    const std::lock_guard lock(mutex_);
    if (state_ != ncclSuccess) return;
    state_ = ncclInProgress;
  }
  thread_.join();
  thread_ = std::thread([this] {
    const std::lock_guard working(working_);
    if (auto ended = communicator_->finalize(); !ended) return failed(ended.error());
    const std::lock_guard lock(mutex_);
    if (state_ == ncclInProgress) state_ = ncclSuccess;
  });
}

void Rank::be_late() {
  if (random_() % kOneLateOf != 0) return;
  std::this_thread::sleep_for(std::chrono::microseconds(random_() % kMostDelay_us));
}

void Rank::run(const std::vector<RankCall>& calls) {
  const std::lock_guard working(working_);
  be_late();
  if (state() != ncclSuccess) return;
  if (is_message(calls.front())) {
    if (auto done = exchange(calls); !done) failed(done.error());
    return;
  }
  for (const RankCall& call : calls) {
    if (auto done = meet(call); !done) return failed(done.error());
  }
}

Result<> Rank::meet(const RankCall& call) {
  if (call.kind == RankCall::Kind::all_gather) {
    return communicator_->all_gather(
        {.source = call.source, .destination = call.destination, .elements = call.elements});
  }
  if (call.kind == RankCall::Kind::all_reduce) {
    return communicator_->all_reduce({.source = call.source,
                                      .destination = call.destination,
                                      .elements = call.elements,
                                      .reduction = static_cast<Reduction>(call.detail)});
  }
  const auto root = static_cast<std::uint32_t>(call.detail);
  const std::uint64_t size_bytes = call.elements.size_bytes();
  if (root == communicator_->place().rank && call.source != call.destination) {
    std::memmove(call.destination, call.source, size_bytes);
  }
  const iovec piece{call.destination, size_bytes};
  return communicator_->broadcast({.root = root, .pieces = {&piece, 1}});
}

// Exchanges the lengths first: the n-th send to a rank must be as long as the n-th receive there.
// Equal sums are not enough.
Result<> Rank::exchange(const std::vector<RankCall>& calls) {
  std::vector<std::uint64_t> lengths;
  std::vector<iovec> pieces;
  std::vector<Communicator::Message> messages;
  lengths.reserve(calls.size());
  pieces.reserve(2 * calls.size());
  for (const RankCall& call : calls) {
    const bool out = call.kind == RankCall::Kind::send;
    lengths.push_back(out ? call.elements.size_bytes() : 0);
    pieces.push_back({&lengths.back(), sizeof(std::uint64_t)});
    pieces.push_back(
        {out ? const_cast<std::byte*>(call.source) : call.destination, call.elements.size_bytes()});
    messages.push_back(
        {.kind = out ? Communicator::Message::Kind::send : Communicator::Message::Kind::receive,
         .peer = static_cast<std::uint32_t>(call.detail),
         .pieces = {&pieces[pieces.size() - 2], 2}});
  }
  CAIRN_TRY(communicator_->exchange(messages));
  for (std::size_t i = 0; i < calls.size(); ++i) {
    if (lengths[i] != calls[i].elements.size_bytes()) {
      return Error{ErrorCode::state_conflict, "a receive of another length than its send"};
    }
  }
  return {};
}

}  // namespace cairn::fakes
