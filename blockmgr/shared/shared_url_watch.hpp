#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "base/mutex.hpp"
#include "blockmgr/cache/wait_group.hpp"
#include "transport/store/shared_store.hpp"

namespace cairn {

// Whether other servers say that they are reached at this one's URL. Each tells the store of itself
// under its URL every few seconds, and looks who else does. Thread-safe.
class SharedUrlWatch : public std::enable_shared_from_this<SharedUrlWatch> {
 public:
  struct Services {
    SharedStore& store;  // outlives what is under way
    WaitGroup& under_way;
    const Clock& clock;
  };
  struct Self {
    std::string url;
    std::string instance;  // of this start of this server, unlike all others
  };
  SharedUrlWatch(const Services& services, Self self);

  // Called often, by one thread.
  void look();
  // Nobody has to wait until what it said runs out.
  void end();
  // Their instances, as of the last look. Empty too where the store said nothing.
  std::vector<std::string> others() const;

 private:
  void told(bool is_told);
  void found(const SharedStore::Holders& all);

  const Services services_;
  const Self self_;
  const std::string name_;
  const TimePoint began_;
  TimePoint next_;  // look()'s own
  mutable Mutex mutex_;
  std::vector<std::string> others_ CAIRN_GUARDED_BY(mutex_);
};

}  // namespace cairn
