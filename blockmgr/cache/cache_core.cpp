#include "blockmgr/cache/cache_core.hpp"

#include <algorithm>
#include <string>

#include "base/thread.hpp"
#include "blockmgr/index/config_check.hpp"

namespace cairn {
namespace {

// A tier that shrinks gives up so many copies a section, so that the lock is held for microseconds;
// the next operation or tick goes on.
constexpr std::uint32_t kShrinkStep = 256;

BlockStore::Options store_options(CacheServices& services, const CacheCore::Parts& parts) {
  BlockStore::Options options{.offload_on_evict = parts.config.offload == OffloadMode::on_evict,
                              .hash_seed = parts.hash_seed,
                              .events = {&services.events, parts.number}};
  for (std::size_t i = 0; i < kNumTiers; ++i) {
    if (parts.config.tiers[i]) options.capacities[i] = parts.config.tiers[i]->num_blocks;
  }
  return options;
}

std::array<std::unique_ptr<TierSpace>, kNumTiers> make_spaces(CacheCore::Parts& parts) {
  std::array<std::unique_ptr<TierSpace>, kNumTiers> spaces;
  for (Tier tier : kTiers) {
    auto& layout = parts.layouts[index_of(tier)];
    if (!layout) continue;
    std::vector<PreparedMemory> prepared;
    if (tier == Tier::pinned) prepared = std::move(parts.prepared);
    spaces[index_of(tier)] = std::make_unique<TierSpace>(std::move(*layout), std::move(prepared));
  }
  return spaces;
}

}  // namespace

CacheCore::CacheCore(std::shared_ptr<CacheServices> shared, Parts parts)
    : services(std::move(shared)),
      config(parts.config),
      number(parts.number),
      block_bytes(cairn::block_bytes(parts.config.shape)),
      spaces(make_spaces(parts)),
      disk_slots(std::move(parts.disk_slots)),
      disk_files(std::move(parts.disk_files)),
      staging(services->runtime, services->staging, parts.config.shape),
      settings(parts.config),
      journal(std::move(parts.journal)),
      store(store_options(*services, parts)),
      leases({.cache = parts.number, .max_leases = options().max_leases}) {
  services->events.open(number, config.name);
  for (std::size_t i = 0; i < kNumTiers; ++i) {
    mapped[i] = config.tiers[i] && config.tiers[i]->import;
    if (!config.tiers[i]) continue;
    gauges[i].emplace(pressure_of(config, kTiers[i], options()), config.tiers[i]->num_blocks);
  }
}

Result<> CacheCore::check_tier(Tier tier) const {
  if (spaces[index_of(tier)]) return {};
  return Error{ErrorCode::unknown_tier,
               "cache " + config.name + " has no tier " + std::string(to_string(tier))};
}

Result<> CacheCore::check_metadata(std::size_t size_bytes) const {
  const std::size_t most = options().max_metadata_bytes;
  if (size_bytes <= most) return {};
  return Error{ErrorCode::body_too_large, "the metadata is " + std::to_string(size_bytes) +
                                              " bytes; it takes at most " + std::to_string(most)};
}

Result<> CacheCore::check_quota(const BlockQuota* quota, Tier tier, std::uint64_t more) const {
  if (quota == nullptr || more == 0 || quota->fits(tier, more)) return {};
  return Error{ErrorCode::no_capacity, "the quota of tier " + std::string(to_string(tier)) +
                                           " is " + std::to_string(quota->limit(tier)) +
                                           " blocks, of which " +
                                           std::to_string(quota->used(tier)) + " are in use"};
}

Result<> CacheCore::check_usable() const {
  if (!dropped) return {};
  return Error{ErrorCode::unknown_cache, "cache " + config.name + " has been removed"};
}

Result<std::uint32_t> CacheCore::lease_duration_ms(std::optional<std::uint32_t> wanted) const {
  const std::uint32_t ms = wanted.value_or(settings->default_lease_ms);
  if (ms >= 1 && ms <= options().max_lease_ms) return ms;
  return Error{ErrorCode::out_of_range, "lease_ms is " + std::to_string(ms) + ", not 1 to " +
                                            std::to_string(options().max_lease_ms)};
}

Result<LeaseNumber> CacheCore::live_lease(Section& section, const LeaseId& id) {
  CAIRN_TRY(check_usable());
  end_overdue(section);
  return leases.find(id);
}

void CacheCore::end_lease(Section& section, LeaseNumber lease, bool expired) {
  (void)section;  // says that the lock is held
  // The last block of a prefix becomes the least recently used, so that the prefix goes from there.
  const std::vector<SlotRef>& held = leases[lease].held;
  for (auto at = held.rbegin(); at != held.rend(); ++at) {
    forget_writes(*at);
    store.unpin_for_lease(*at);
  }
  leases.close(lease, expired);
  if (expired) ++lease_expirations;
}

void CacheCore::end_overdue(Section& section) {
  while (auto lease = leases.overdue(section.now())) end_lease(section, *lease, true);
}

Result<> CacheCore::check_pins(const LeaseQuota* pins, std::uint64_t more) {
  if (pins == nullptr || pins->fits(more)) return {};
  return Error{ErrorCode::lease_quota,
               "leases of this token hold " + std::to_string(pins->used()) + " blocks, and " +
                   std::to_string(more) + " more would be over its limit of " +
                   std::to_string(pins->limit()) + "; release some, or let them end"};
}

Result<> CacheCore::check_held(std::uint64_t more) const {
  const std::uint64_t held = store.lease_pins();
  const auto& quota = settings->quota.max_leased_blocks;
  if (quota && held + more > *quota) {
    return Error{ErrorCode::lease_quota,
                 "leases of cache " + config.name + " hold " + std::to_string(held) +
                     " blocks, and " + std::to_string(more) + " more would be over its quota of " +
                     std::to_string(*quota) + "; release some, or let them end"};
  }
  if (held == 0 || held + more <= options().max_held_blocks) return {};
  return Error{ErrorCode::too_many, "leases hold " + std::to_string(held) + " blocks, and " +
                                        std::to_string(more) + " more would be over the limit of " +
                                        std::to_string(options().max_held_blocks)};
}

void CacheCore::forget_writes(SlotRef at) {
  if (writes.empty()) return;
  if (auto found = writes.find(at.bits()); found != writes.end() && !found->second.busy()) {
    writes.erase(found);
  }
}

Result<SlotRef> CacheCore::uncommitted(LeaseNumber lease, const BlockHandle& handle) const {
  CAIRN_TRY(check_tier(handle.tier));
  const std::string name =
      "slot " + std::to_string(handle.slot) + " of tier " + std::string(to_string(handle.tier));
  if (!store.pool(handle.tier).exists(handle.slot)) {
    return Error{ErrorCode::unknown_slot, "there is no " + name};
  }
  const SlotRef at(handle.tier, handle.slot);
  const SlotRecord& slot = store.record(at);
  if (slot.generation != handle.generation || slot.life == SlotLife::free || slot.gone) {
    return Error{ErrorCode::stale_generation, name + " is at generation " +
                                                  std::to_string(slot.generation) + ", not " +
                                                  std::to_string(handle.generation)};
  }
  if (slot.life == SlotLife::committed) {
    return Error{ErrorCode::state_conflict, name + " is committed: its bytes no longer change"};
  }
  if (slot.owner != lease) {
    return Error{ErrorCode::foreign_lease, name + " is not of this lease"};
  }
  if (slot.committing) {
    return Error{ErrorCode::state_conflict, name + " is being committed"};
  }
  return at;
}

SlotLabel CacheCore::label_of(const Section& section, SlotRef at, const NewBlock& block) const {
  const auto text = [](KeyView key) {
    return std::string(reinterpret_cast<const char*>(key.data), key.size);
  };
  const SlotRecord& slot = store.record(at);
  return {.key = text(block.key),
          .parent = block.parent ? text(*block.parent) : std::string(),
          .metadata = block.metadata,
          .generation = slot.generation,
          .stamp = slot.last_use.value,
          .expires_at_unix_ms = block.expires_at ? section.unix_ms_at(*block.expires_at) : 0,
          .priority = slot.priority,
          .epoch = block.epoch};
}

SlotLabel CacheCore::label_of_copy(const Section& section, SlotRef source,
                                   SlotRef destination) const {
  const SlotRecord& slot = store.record(source);
  if (slot.gone || slot.life != SlotLife::committed) return {};
  const Entry& entry = store.entry(slot.owner);
  const BlockKey key = store.key(slot.owner);
  std::optional<BlockKey> parent;
  NewBlock block{.key = key, .epoch = entry.epoch};
  if (entry.parent != kNoEntry) {
    parent = store.key(entry.parent);
    block.parent = parent->view();
  }
  if (entry.metadata) block.metadata = *entry.metadata;
  if (entry.has_ttl) block.expires_at = entry.expires_at;
  SlotLabel label = label_of(section, destination, block);
  label.priority = slot.priority;
  return label;
}

void CacheCore::settle(Section& section) {
  const auto serve_all = [&] {
    while (store.take_freed() | section.take_serve_again()) {
      for (Tier tier : kTiers) serve(section, tier);
    }
  };
  serve_all();
  if (dropped) return;
  settle_pressure(section);
  settle_sizes(section);
  serve_all();
}

void CacheCore::settle_pressure(Section& section) {
  for (Tier tier : kTiers) {
    const std::size_t i = index_of(tier);
    if (!gauges[i]) continue;
    const SlotPool& slots = store.pool(tier);
    const auto crossing = gauges[i]->update(
        {.free = slots.free_count(),
         .evictable = std::min(slots.evictable_count(), slots.limit() - slots.free_count())});
    if (crossing && crossing->callback && options().on_pressure) {
      section.after([core = shared_from_this(),
                     event = PressureEvent{config.name, tier, crossing->from, crossing->to}] {
        core->options().on_pressure(event);
      });
    }
    if (crossing && crossing->shrink_to) shrink_to[i] = crossing->shrink_to;
    if (!shrink_to[i]) continue;
    const std::uint32_t used = slots.capacity() - slots.free_count() - store.leaving_count(tier);
    const std::uint32_t excess = used > *shrink_to[i] ? used - *shrink_to[i] : 0;
    const Reclaim step{.count = std::min(excess, kShrinkStep), .reason = EvictionReason::pressure};
    if (excess == 0 || reclaim(section, tier, step) == 0) shrink_to[i].reset();
  }
}

void CacheCore::shut(Section& section) {
  dropped = true;
  while (auto lease = leases.any()) end_lease(section, *lease, false);
  const Error gone{ErrorCode::unknown_cache, "cache " + config.name + " has been removed"};
  for (Tier tier : kTiers) {
    auto& waiting = requests[index_of(tier)];
    while (!waiting.empty()) cancel_request(section, tier, waiting.front().id, gone);
  }
  const auto open = transfers;  // ends remove themselves
  for (const auto& [id, move] : open) cancel_move(section, move);
  store.stop_telling();
  services->events.close(number, section.unix_ms());
}

Section::Section(CacheCore& core) : core_(core) {
  core_.mutex.lock();
  now_ = core_.services->clock.now();
  unix_ms_ = core_.services->clock.unix_ms();
  core_.store.set_time(unix_ms_, now_);
}

Section::~Section() {
  // What throws here must not end the process. Those who wait for slots are served by the next
  // section; an answer that was not given says so itself when it is destroyed.
  if (!guarded("cache", [this] { core_.settle(*this); })) core_.store.say_freed();
  core_.mutex.unlock();
  for (auto& action : actions_) guarded("cache", action);
}

}  // namespace cairn
