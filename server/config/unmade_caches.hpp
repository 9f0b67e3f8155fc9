#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.hpp"
#include "base/mutex.hpp"

namespace cairn {

// A cache that the server could not make at its start.
struct UnmadeCache {
  std::string name;
  Error why;
  // Its memory belongs to an engine, which makes the cache again when it is back.
  bool awaits_engine = false;
};

// The caches that are still missing, sorted by name. Thread-safe.
class UnmadeCaches {
 public:
  // Replaces an earlier entry of the same cache.
  void add(UnmadeCache cache) {
    MutexLock lock(mutex_);
    const auto at = place_of(cache.name);
    if (at != all_.end() && at->name == cache.name) {
      *at = std::move(cache);
    } else {
      all_.insert(at, std::move(cache));
    }
  }
  // Returns false if the cache is not in the list.
  bool remove(std::string_view name) {
    MutexLock lock(mutex_);
    const auto at = place_of(name);
    if (at == all_.end() || at->name != name) return false;
    all_.erase(at);
    return true;
  }
  bool contains(std::string_view name) const {
    MutexLock lock(mutex_);
    return std::ranges::find(all_, name, &UnmadeCache::name) != all_.end();
  }
  std::vector<UnmadeCache> list() const {
    MutexLock lock(mutex_);
    return all_;
  }

 private:
  std::vector<UnmadeCache>::iterator place_of(std::string_view name) CAIRN_REQUIRES(mutex_) {
    return std::ranges::lower_bound(
        all_, name, {}, [](const UnmadeCache& one) -> std::string_view { return one.name; });
  }

  mutable Mutex mutex_;
  std::vector<UnmadeCache> all_ CAIRN_GUARDED_BY(mutex_);
};

}  // namespace cairn
