#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <vector>

#include "base/mutex.hpp"
#include "base/thread.hpp"
#include "transport/stream_copier.hpp"

namespace cairn {

// Threads that help workers with jobs made of independent parts, each with a lane of its own: while
// one waits for the disk, another copies to the device. Thread-safe.
class LaneCrew {
 public:
  // Borrows both; `scratch` may be null. Throws std::system_error where there is no thread.
  LaneCrew(DeviceRuntime& runtime, DeviceScratch* scratch, std::uint32_t helpers);
  ~LaneCrew();
  LaneCrew(const LaneCrew&) = delete;
  LaneCrew& operator=(const LaneCrew&) = delete;

  using Part = std::function<void(std::size_t index, Lane& lane)>;
  // Runs part(0) to part(count - 1), on the caller with its own lane and on helpers that are free,
  // and returns when all have ended. Parts run at the same time and must not call for_each. Throws
  // what a part threw, once all have ended.
  void for_each(std::size_t count, Lane& own_lane, const Part& part);

 private:
  struct Round {
    const Part& part;
    std::size_t count;
    std::size_t next = 0;
    std::size_t running = 0;
    std::exception_ptr thrown = {};  // by the part that threw last
  };
  void stop();
  void help();
  // Runs the next part of a round that has one left. REQUIRES: the mutex is held; it is let go
  // while the part runs.
  void run_next(Round& round, Lane& lane) CAIRN_REQUIRES(mutex_);

  DeviceRuntime& runtime_;
  DeviceScratch* const scratch_;
  Mutex mutex_;
  Condition work_;                                    // a round was opened, or the end has come
  Condition ended_;                                   // the last running part of a round has ended
  std::deque<Round*> open_ CAIRN_GUARDED_BY(mutex_);  // rounds with parts that nobody has taken
  bool stopping_ CAIRN_GUARDED_BY(mutex_) = false;
  std::vector<Thread> helpers_;
};

}  // namespace cairn
