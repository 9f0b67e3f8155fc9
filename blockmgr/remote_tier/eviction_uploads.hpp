#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "base/clock.hpp"
#include "base/mutex.hpp"
#include "blockmgr/remote_tier/remote_context.hpp"

namespace cairn {

// Stores blocks that are being evicted from their cache. A block stays here until it is stored, or
// has waited too long for its turn. Thread-safe.
class EvictionUploads : public std::enable_shared_from_this<EvictionUploads> {
 public:
  struct Options {
    const Clock& clock;
    Duration wait_at_most;
    // Called when a block is stored or dropped, without locks held. deadline_exceeded: it waited
    // too long. Not called for blocks that end() releases.
    std::function<void(const BlockKey& key, const Result<>& result)> ended;
  };
  EvictionUploads(std::shared_ptr<RemoteContext> context, Options options);

  void take(std::vector<LeavingBlock> blocks);
  // Releases blocks that have waited too long. Call every few tens of milliseconds.
  void look();
  // Releases the waiting blocks; nothing starts from now on.
  void end();
  std::uint64_t waiting() const;

 private:
  struct Waiting {
    LeavingBlock block;
    TimePoint since;
  };

  void store_next();
  void store_ended(const BlockKey& key, const Result<>& result);

  const std::shared_ptr<RemoteContext> context_;
  const Options options_;
  mutable Mutex mutex_;
  bool ended_ CAIRN_GUARDED_BY(mutex_) = false;
  std::deque<Waiting> waiting_ CAIRN_GUARDED_BY(mutex_);
  std::uint32_t storing_ CAIRN_GUARDED_BY(mutex_) = 0;
};

}  // namespace cairn
