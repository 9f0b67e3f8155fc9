#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "blockmgr/block_manager.hpp"
#include "server/routes/timer_queue.hpp"

namespace cairn {

// Requests that wait until a transfer ends, or for a limited time. Bounded. Thread-safe.
class TransferWaits {
 public:
  // About the number of connections: most requests wait for one transfer, a match for each fetch of
  // its blocks.
  static constexpr std::size_t kMaxWaits = 4096;

  explicit TransferWaits(BlockManager& manager);
  ~TransferWaits();
  TransferWaits(const TransferWaits&) = delete;
  TransferWaits& operator=(const TransferWaits&) = delete;

  // Runs `answer` once: when the transfer ends, or after `wait_ms`; on this thread or another.
  // Errors, without running it: queue_full, unknown_transfer.
  Result<> wait(TransferId id, std::uint32_t wait_ms, UniqueFunction<void()> answer);
  // Runs `answer` once all of these have ended, or their time is over.
  struct Waited {
    TransferId id;
    std::uint32_t wait_ms = 0;
  };
  void wait_for_all(const std::vector<Waited>& transfers, UniqueFunction<void()> answer);
  // Runs `function` after that time, or at flush(). Returns false if too many wait.
  bool after(std::uint32_t delay_ms, UniqueFunction<void()> function);
  // Ends every wait. For a server that drains.
  void flush() { timers_.flush(); }

 private:
  struct Shared;
  class Wait;

  BlockManager& manager_;
  const std::shared_ptr<Shared> shared_;
  TimerQueue timers_;
};

}  // namespace cairn
