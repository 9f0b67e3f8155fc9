#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "base/clock.hpp"
#include "base/mutex.hpp"
#include "blockmgr/shared/shared_context.hpp"

namespace cairn {

// Blocks that leave their cache, on their way into the store. Each stays until it is there, or has
// waited for its turn too long. Thread-safe.
class SharedDepartures : public std::enable_shared_from_this<SharedDepartures> {
 public:
  struct Options {
    const Clock& clock;
    Duration wait_at_most;
    // The store has it, or has not; deadline_exceeded where it waited too long. Without locks held.
    std::function<void(const BlockKey& key, const Result<>& result)> ended;
  };
  SharedDepartures(std::shared_ptr<SharedContext> context, Options options);

  void take(std::vector<DepartingBlock> blocks);
  // Lets go of what has waited too long. Called every few tens of milliseconds.
  void look();
  // Nothing begins any more.
  void end();
  std::uint64_t waiting() const;

 private:
  struct Waiting {
    DepartingBlock block;
    TimePoint since;
  };

  void store_next();
  void store_ended(const BlockKey& key, const Result<>& result);

  const std::shared_ptr<SharedContext> context_;
  const Options options_;
  mutable Mutex mutex_;
  bool ended_ CAIRN_GUARDED_BY(mutex_) = false;
  std::deque<Waiting> waiting_ CAIRN_GUARDED_BY(mutex_);
  std::uint32_t storing_ CAIRN_GUARDED_BY(mutex_) = 0;
};

}  // namespace cairn
