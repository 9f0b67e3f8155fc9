#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "blockmgr/block_manager.hpp"
#include "server/timer_queue.hpp"

namespace cairn {

// Requests that wait until a transfer has ended, or for a while. Bounded. Thread-safe.
class TransferWaits {
 public:
  // Each is a request on a connection of its own, so this is about the number of connections.
  static constexpr std::size_t kMaxWaits = 4096;

  explicit TransferWaits(BlockManager& manager);

  // Runs `answer` once: when the transfer has ended, or after `wait_ms`; on this thread or another.
  // queue_full, unknown_transfer: it is then not run.
  Result<> wait(TransferId id, std::uint32_t wait_ms, UniqueFunction<void()> answer);
  // Ends every wait: for a server that drains.
  void flush() { timers_.flush(); }

 private:
  BlockManager& manager_;
  // Of waits, and of watchers whose wait has run out but whose transfer has not ended. Shared with
  // them: they may outlive this.
  std::shared_ptr<std::atomic<std::size_t>> open_;
  TimerQueue timers_;
};

}  // namespace cairn
