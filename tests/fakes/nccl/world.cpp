#include "tests/fakes/nccl/world.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "transport/collective/reduce.hpp"

namespace cairn::fakes {
namespace {

// As in the fake of the CUDA runtime: one call in so many is late, by up to so long.
constexpr std::uint64_t kOneLateOf = 4;
constexpr std::uint64_t kMostDelay_us = 200;

}  // namespace

bool World::all_here() const {
  return std::all_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return rank.here; });
}

bool World::enter(int rank, int size) {
  const std::lock_guard lock(mutex_);
  if (size != size_ || rank < 0 || rank >= size_ || at(rank).here) return false;
  at(rank).here = true;
  changed_.notify_all();
  return true;
}

ncclResult_t World::state(int rank) {
  const std::lock_guard lock(mutex_);
  if (at(rank).error != ncclSuccess) return at(rank).error;
  return all_here() ? ncclSuccess : ncclInProgress;
}

void World::fail_all(ncclResult_t error) {
  for (Rank& rank : ranks_) {
    if (rank.error == ncclSuccess) rank.error = error;
  }
  changed_.notify_all();
}

void World::lose(int rank) {
  const std::lock_guard lock(mutex_);
  if (at(rank).left) return;
  at(rank).left = true;
  fail_all(ncclRemoteError);
}

void World::leave(int rank) {
  const std::lock_guard lock(mutex_);
  at(rank).left = true;
}

void World::fail(int rank, ncclResult_t error) {
  const std::lock_guard lock(mutex_);
  if (at(rank).error == ncclSuccess) at(rank).error = error;
  changed_.notify_all();
}

void World::be_late(std::unique_lock<std::mutex>& lock) {
  if (random_() % kOneLateOf != 0) return;
  const std::chrono::microseconds delay(random_() % kMostDelay_us);
  lock.unlock();
  std::this_thread::sleep_for(delay);
  lock.lock();
}

void World::meet(int rank, const CollectiveCall& call, const CallBuffers& buffers) {
  std::unique_lock lock(mutex_);
  be_late(lock);
  const std::uint64_t number = at(rank).calls++;
  auto& slot = rounds_[number];
  if (!slot) {
    slot = std::make_shared<Round>();
    slot->ranks.resize(ranks_.size());
  }
  const auto round = slot;
  if (round->call && !(*round->call == call)) return fail_all(ncclInvalidUsage);
  round->call = call;
  round->ranks[static_cast<std::size_t>(rank)] = buffers;
  if (++round->present == ranks_.size()) {
    rounds_.erase(number);
    move(*round);
    round->ended = true;
    changed_.notify_all();
    return;
  }
  changed_.wait(lock, [&] { return round->ended || at(rank).error != ncclSuccess; });
  // Nobody may write to this rank's memory any more.
  if (!round->ended) rounds_.erase(number);
}

void World::move(const Round& round) const {
  const CollectiveCall& call = *round.call;
  const auto type = static_cast<DataType>(call.type);
  const std::size_t size = call.count * width_bytes(type);
  if (size == 0) return;
  if (call.kind == CollectiveCall::Kind::broadcast) {
    const std::byte* source = round.ranks[static_cast<std::size_t>(call.detail)]->source;
    for (const auto& rank : round.ranks) std::memmove(rank->destination, source, size);
    return;
  }
  std::vector<std::byte> all;
  for (const auto& rank : round.ranks) all.insert(all.end(), rank->source, rank->source + size);
  if (call.kind == CollectiveCall::Kind::all_gather) {
    for (const auto& rank : round.ranks) std::memcpy(rank->destination, all.data(), all.size());
    return;
  }
  const auto reduction = static_cast<Reduction>(call.detail);
  const std::span<std::byte> sums(all.data(), size);
  for (std::size_t i = 1; i < round.ranks.size(); ++i) {
    reduce({.accumulator = sums,
            .values = std::span(all).subspan(i * size, size),
            .type = type,
            .reduction = reduction});
  }
  if (reduction == Reduction::avg) average(sums, type, static_cast<std::uint32_t>(size_));
  for (const auto& rank : round.ranks) std::memcpy(rank->destination, sums.data(), size);
}

void World::exchange(int rank, const std::vector<PeerMessage>& messages) {
  std::unique_lock lock(mutex_);
  be_late(lock);
  const auto failed = [&] { return at(rank).error != ncclSuccess; };
  std::vector<std::shared_ptr<Post>> mine;
  for (const PeerMessage& message : messages) {
    if (!message.out) continue;
    mine.push_back(std::make_shared<Post>(Post{.message = &message}));
    posts_[{rank, message.peer}].push_back(mine.back());
  }
  changed_.notify_all();
  for (const PeerMessage& message : messages) {
    if (message.out) continue;
    auto& queue = posts_[{message.peer, rank}];
    changed_.wait(lock, [&] { return failed() || !queue.empty(); });
    if (failed()) break;
    const auto post = queue.front();
    queue.pop_front();
    if (post->message->size_bytes != message.size_bytes) {
      fail_all(ncclInvalidUsage);
      break;
    }
    if (message.size_bytes > 0) {
      std::memcpy(message.bytes, post->message->bytes, message.size_bytes);
    }
    post->taken = true;
    changed_.notify_all();
  }
  changed_.wait(lock, [&] {
    return failed() ||
           std::all_of(mine.begin(), mine.end(), [](const auto& post) { return post->taken; });
  });
  for (const auto& post : mine) {
    auto& queue = posts_[{rank, post->message->peer}];
    std::erase(queue, post);
  }
}

}  // namespace cairn::fakes
