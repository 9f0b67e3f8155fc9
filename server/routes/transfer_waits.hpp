#pragma once

#include <cstdint>
#include <memory>

#include "blockmgr/block_manager.hpp"
#include "server/routes/timer_queue.hpp"

namespace cairn {

// Requests that wait until a transfer has ended, or for a while. Bounded. Thread-safe.
class TransferWaits {
 public:
  // About the number of connections: a request waits for one transfer mostly, and a match for each
  // fetch that brings some of its blocks.
  static constexpr std::size_t kMaxWaits = 4096;

  explicit TransferWaits(BlockManager& manager);
  ~TransferWaits();
  TransferWaits(const TransferWaits&) = delete;
  TransferWaits& operator=(const TransferWaits&) = delete;

  // Runs `answer` once: when the transfer has ended, or after `wait_ms`; on this thread or another.
  // queue_full, unknown_transfer: it is then not run.
  Result<> wait(TransferId id, std::uint32_t wait_ms, UniqueFunction<void()> answer);
  // Ends every wait: for a server that drains.
  void flush() { timers_.flush(); }

 private:
  struct Shared;
  class Wait;

  BlockManager& manager_;
  const std::shared_ptr<Shared> shared_;
  TimerQueue timers_;
};

}  // namespace cairn
