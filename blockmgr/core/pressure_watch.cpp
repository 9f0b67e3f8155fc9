#include "blockmgr/core/pressure_watch.hpp"

#include <algorithm>

#include "blockmgr/core/cache_core.hpp"
#include "blockmgr/index/config_check.hpp"

namespace cairn {
namespace {

// Copies that a shrinking tier evicts per hold of the lock, so that the lock is held for
// microseconds. The next operation or tick continues.
constexpr std::uint32_t kShrinkStep = 256;

PressureGauge::Use use_of(const SlotPool& slots) {
  return {.free = slots.free_count(),
          .evictable = std::min(slots.evictable_count(), slots.size() - slots.free_count())};
}

}  // namespace

PressureWatch::PressureWatch(const CacheConfig& config, const BlockManagerOptions& options) {
  for (Tier tier : kTiers) {
    const auto& made = config.tiers[index_of(tier)];
    if (!made) continue;
    gauges_[index_of(tier)].emplace(pressure_of(config, tier, options), made->num_blocks);
  }
}

void PressureWatch::set(Tier tier, const PressureConfig& config, std::uint32_t num_blocks) {
  if (auto& gauge = gauges_[index_of(tier)]) gauge->set(config, num_blocks);
}

PressureLevel PressureWatch::level(Tier tier, const SlotPool& slots) const {
  return gauges_[index_of(tier)]->level_for(use_of(slots));
}

void PressureWatch::look(CacheLock& locked) {
  for (Tier tier : kTiers) {
    const std::size_t i = index_of(tier);
    if (!gauges_[i]) continue;
    const SlotPool& slots = locked->store.pool(tier);
    const auto crossing = gauges_[i]->update(use_of(slots));
    if (crossing && crossing->callback && locked.core().options().on_pressure) {
      locked.after([core = locked.core().shared_from_this(), tier, from = crossing->from,
                    to = crossing->to] {
        core->options().on_pressure({core->config.name, tier, from, to});
      });
    }
    if (crossing && crossing->empty_cache) {
      const CacheCore& core = locked.core();
      locked.after(
          [&scheduler = core.services->scheduler, device_id = core.config.tiers[i]->device_id] {
            scheduler.empty_cache_later(device_id);
          });
    }
    if (crossing && crossing->shrink_to) shrink_to_[i] = crossing->shrink_to;
    if (!shrink_to_[i]) continue;
    const std::uint32_t used =
        slots.capacity() - slots.free_count() - locked->store.leaving_units(tier);
    const std::uint32_t excess = used > *shrink_to_[i] ? used - *shrink_to_[i] : 0;
    const SlotQueue::Reclaim step{.units = std::min(excess, kShrinkStep),
                                  .reason = EvictionReason::pressure};
    const bool done = excess == 0 || (locked->slots.reclaim(locked, tier, step) == 0 &&
                                      !locked.step_is_over() && !locked->evict_to_remote.is_full());
    if (done) shrink_to_[i].reset();
  }
}

}  // namespace cairn
