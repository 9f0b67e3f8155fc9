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
#include "blockmgr/shared/shared_context.hpp"

namespace cairn {

// Tells the store which blocks of a cache this server has, and asks it who else has some. What has
// changed is told within some tens of milliseconds, in batches; all of it is told anew before it
// runs out, from a walk over the cache's index, so nothing is remembered here, and what could not
// be told is told by the next walk. Thread-safe.
class SharedHolders : public std::enable_shared_from_this<SharedHolders> {
 public:
  SharedHolders(std::shared_ptr<SharedContext> context, const Clock& clock);

  // Who has each key, the nearest first and those that are as near in any order; nothing where that
  // is not known in time. Not this server.
  struct Find {
    std::vector<BlockKey> keys;
    std::chrono::microseconds within;
  };
  void find(Find find, UniqueFunction<void(std::vector<std::optional<BlockSources>>)> done);
  // It came, went, or went to another tier: looked at soon.
  void changed(const BlockKey& key);
  // Of a source that turned out not to have it.
  void is_not_there(const BlockKey& key, const BlockSource& source);
  // Tells what has changed, and a part of all. Called every few tens of milliseconds by one thread.
  void look();
  void end();
  std::uint64_t waiting() const;

 private:
  void tell_changed();
  void walk();
  void announce(std::vector<SharedStore::Announce::Block> blocks);
  BlockSources sources_of(const std::vector<SharedStore::Holder>& holders);
  bool may_tell() const;

  const std::shared_ptr<SharedContext> context_;
  const Clock& clock_;
  const std::string own_;  // this server, as it stands in the store
  const std::chrono::milliseconds lifetime_;
  const bool only_used_again_;
  mutable Mutex mutex_;
  bool ended_ CAIRN_GUARDED_BY(mutex_) = false;
  std::deque<BlockKey> changed_ CAIRN_GUARDED_BY(mutex_);
  std::uint32_t batches_ CAIRN_GUARDED_BY(mutex_) = 0;  // being told
  std::minstd_rand random_ CAIRN_GUARDED_BY(mutex_);
  // look()'s own: how far the walk has come.
  std::uint64_t cursor_ = 0;
  TimePoint walk_began_;
  std::chrono::milliseconds walk_takes_;
};

}  // namespace cairn
