#include "blockmgr/checkpointer.hpp"

#include <algorithm>
#include <chrono>
#include <mutex>
#include <utility>

#include "blockmgr/disk_tier/disk_tier.hpp"
#include "blockmgr/disk_tier/kept_pins.hpp"

namespace cairn {
namespace {

// How often it checks the logs and the period.
constexpr std::chrono::milliseconds kCheckpointLook{200};
// The pause after the first failure.
constexpr std::chrono::seconds kFirstPause{1};
// The pause after the pins of a cache were written, in times of how long that took.
constexpr int kPinsPause = 20;

}  // namespace

Checkpointer::Checkpointer(const Clock& clock, Options options)
    : clock_(clock),
      options_(std::move(options)),
      last_(clock.now()),
      thread_("checkpoints", [this](const std::stop_token& stop) { work(stop); }) {}

void Checkpointer::work(const std::stop_token& stop) {
  while (true) {
    {
      std::unique_lock lock(mutex_);
      wake_.wait_for(lock, stop, kCheckpointLook, [] { return false; });
      if (stop.stop_requested()) return;
    }
    guarded("checkpoints", [this] { look(clock_.now()); });
  }
}

void Checkpointer::look(TimePoint now) {
  const bool all = now - last_ >= options_.period;
  if (all) last_ = now;
  for (const std::shared_ptr<CacheCore>& cache : options_.caches()) {
    CacheCore& core = *cache;
    if (!core.journal) continue;
    keep_pins_of(core, all);
    bool wanted = false;
    {
      CacheLock locked(core, LockUse::upkeep);
      const auto failing = failing_.find(core.number);
      const bool may_again = failing == failing_.end() || now >= failing->second.not_before;
      const bool early = core.journal->wants_checkpoint() && may_again;
      wanted = !locked->dropped && (early || (all && core.journal->has_changes()));
    }
    if (!wanted) continue;
    if (checkpoint_disk_tier(core)) {
      failing_.erase(core.number);
    } else {
      Failing& failing = failing_[core.number];
      failing.pause = std::clamp<Duration>(2 * failing.pause, kFirstPause,
                                           std::max<Duration>(options_.period, kFirstPause));
      failing.not_before = now + failing.pause;
    }
  }
}

// All pins of a cache are written each time, so a cache with very many writes them less often.
void Checkpointer::keep_pins_of(CacheCore& core, bool all) {
  KeptPins& kept = kept_pins_[core.number];
  const TimePoint before = clock_.now();
  std::uint64_t changes = 0;
  {
    CacheLock locked(core, LockUse::upkeep);
    changes = locked->pins.changes();
    const bool is_due = changes != kept.changes && before >= kept.not_before;
    if (!is_due && !(all && locked->pins.take_refreshed())) return;
  }
  Result<> written;
  {
    MutexLock only_one(core.checkpointing);
    written = keep_pins(core);
  }
  kept.not_before = before + kPinsPause * (clock_.now() - before);
  if (written) {
    kept.changes = changes;
    return;
  }
  kept.not_before = before + std::max<Duration>(options_.period, kFirstPause);
  core.services->log.warning("could not write the pins of a cache",
                             {{"cache", core.config.name}, {"detail", written.error().detail}});
}

}  // namespace cairn
