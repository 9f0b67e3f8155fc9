#include "blockmgr/checkpointer.hpp"

#include <chrono>
#include <cstdint>
#include <set>
#include <utility>

#include "blockmgr/disk_tier.hpp"

namespace cairn {
namespace {

// How often it looks whether a log is half full or the period over.
constexpr std::chrono::milliseconds kCheckpointLook{200};

}  // namespace

Checkpointer::Checkpointer(const Clock& clock, Options options)
    : clock_(clock), options_(std::move(options)), thread_([this] { work(); }) {}

Checkpointer::~Checkpointer() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

void Checkpointer::work() {
  TimePoint last = clock_.now();
  std::set<std::uint32_t> failing;  // tried again with the next period: a full disk stays full
  while (true) {
    {
      MutexLock lock(mutex_);
      if (stopping_) return;
      wake_.wait_for(mutex_, kCheckpointLook);
      if (stopping_) return;
    }
    const TimePoint now = clock_.now();
    const bool all = now - last >= options_.period;
    if (all) last = now;
    for (const std::shared_ptr<CacheCore>& cache : options_.caches()) {
      CacheCore& core = *cache;
      if (!core.journal) continue;
      bool wanted = false;
      {
        MutexLock lock(core.mutex);
        const bool early = core.journal->wants_checkpoint() && !failing.contains(core.number);
        wanted = !core.dropped && (early || (all && core.journal->has_changes()));
      }
      if (!wanted) continue;
      if (checkpoint_disk_tier(core)) {
        failing.erase(core.number);
      } else {
        failing.insert(core.number);
      }
    }
  }
}

}  // namespace cairn
