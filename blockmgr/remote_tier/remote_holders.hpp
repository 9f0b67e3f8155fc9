#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "base/mutex.hpp"
#include "blockmgr/remote_tier/remote_context.hpp"

namespace cairn {

// Announces to the store which blocks of a cache this server has, and asks which other servers have
// a block. It sends changes in batches within some tens of milliseconds. Walks over the cache's
// index repeat every announcement before it expires, so nothing is remembered here, and the next
// walk makes up for a failure. Thread-safe.
class RemoteHolders : public std::enable_shared_from_this<RemoteHolders> {
 public:
  RemoteHolders(std::shared_ptr<RemoteContext> context, const Clock& clock);

  // The other servers that have each key, nearest first, in random order if equally near. nullopt
  // for a key if the store does not respond in time.
  struct Find {
    std::vector<BlockKey> keys;
    std::chrono::microseconds within;
  };
  void find(Find find, UniqueFunction<void(std::vector<std::optional<BlockSources>>)> done);
  // The block came, went, or moved to another tier. look() announces it soon.
  void changed(const BlockKey& key);
  // The source turned out not to have the block.
  void is_not_there(const BlockKey& key, const BlockSource& source);
  // Announces changes and the next part of the walk. One thread must call it every few tens of
  // milliseconds.
  void look();
  void end();
  std::uint64_t waiting() const;

 private:
  void announce_changed();
  void walk();
  void announce(std::vector<RemoteStore::Announce::Block> blocks);
  BlockSources sources_of(const std::vector<RemoteStore::Holder>& holders);
  bool may_announce() const;

  const std::shared_ptr<RemoteContext> context_;
  const Clock& clock_;
  const std::string own_;  // this server's text in the store
  const std::chrono::milliseconds lifetime_;
  const bool only_used_again_;
  mutable Mutex mutex_;
  bool ended_ CAIRN_GUARDED_BY(mutex_) = false;
  std::deque<BlockKey> changed_ CAIRN_GUARDED_BY(mutex_);
  std::uint32_t batches_ CAIRN_GUARDED_BY(mutex_) = 0;  // announcements in progress
  std::minstd_rand random_ CAIRN_GUARDED_BY(mutex_);
  // Only look() uses these: the walk's progress.
  std::uint64_t cursor_ = 0;
  TimePoint walk_began_;
  std::chrono::milliseconds walk_takes_;
};

}  // namespace cairn
