#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "base/mutex.hpp"
#include "blockmgr/core/wait_group.hpp"
#include "transport/store/remote_store.hpp"

namespace cairn {

// Detects other servers that advertise this server's URL. Each server registers itself under its
// URL every few seconds, and looks for others there. Thread-safe.
class RemoteUrlWatch : public std::enable_shared_from_this<RemoteUrlWatch> {
 public:
  struct Services {
    RemoteStore& store;  // outlives work in progress
    WaitGroup& under_way;
    const Clock& clock;
  };
  struct Self {
    std::string url;
    std::string instance;  // identifies this start of this server, unique
  };
  RemoteUrlWatch(const Services& services, Self self);

  // Call often, on one thread.
  void look();
  // Withdraws this server's registration, so that nobody waits until it expires.
  void end();
  // The instances found by the last look. Also empty if the store did not respond.
  std::vector<std::string> others() const;

 private:
  void announced(bool is_announced);
  void found(const RemoteStore::Holders& all);

  const Services services_;
  const Self self_;
  const std::string name_;
  const TimePoint began_;
  TimePoint next_;  // only look() uses it
  mutable Mutex mutex_;
  std::vector<std::string> others_ CAIRN_GUARDED_BY(mutex_);
};

}  // namespace cairn
