// Cache: what there is to see and to note.
#include <algorithm>
#include <string>

#include "base/hex.hpp"
#include "blockmgr/cache/cache_core.hpp"
#include "blockmgr/cache/tier_memory.hpp"

namespace cairn {
namespace {

// Slots that list() looks at under one hold of the lock.
constexpr std::uint32_t kListStep = 4096;

Error unknown_key(const CacheCore& core, KeyView key) {
  return {ErrorCode::unknown_key,
          "key " + to_hex(key.bytes()) + " is not in cache " + core.config.name};
}

BlockInfo describe(const BlockStore& store, SlotRef at) {
  const SlotRecord& slot = store.record(at);
  BlockInfo info{.handle = store.handle(at),
                 .state = store.pool(at.tier()).state(at.slot()),
                 .last_use_unix_ms = slot.last_use.unix_ms(),
                 .priority = slot.priority};
  if (slot.life != SlotLife::committed || slot.gone) return info;
  const Entry& entry = store.entry(slot.owner);
  info.key = store.key(slot.owner);
  if (entry.parent != kNoEntry) info.parent = store.key(entry.parent);
  if (entry.metadata) info.metadata = *entry.metadata;
  info.epoch = entry.epoch;
  return info;
}

}  // namespace

Cache::Cache(std::shared_ptr<CacheCore> core) : core_(std::move(core)) {}
Cache::~Cache() = default;

const CacheConfig& Cache::config() const { return *core_->settings; }
std::uint64_t Cache::block_bytes() const { return core_->block_bytes; }

const BlockLayout* Cache::layout(Tier tier) const {
  return core_->spaces[index_of(tier)] ? &core_->layout(tier) : nullptr;
}

Tier Cache::highest_tier() const {
  return *std::find_if(kTiers.begin(), kTiers.end(),
                       [this](Tier tier) { return layout(tier) != nullptr; });
}

Result<TierMemory> Cache::export_tier(Tier tier, bool passes_files) {
  CAIRN_TRY(core_->check_tier(tier));
  const BlockLayout& layout = core_->layout(tier);
  if (layout.owned().empty() && layout.storage_kind() != StorageKind::disk) {
    return Error{ErrorCode::state_conflict,
                 "tiers." + std::string(to_string(tier)) +
                     " has grown: it lies in several memories, and is exported only as one"};
  }
  auto memory = export_layout(layout);
  if (!memory) return memory;
  if (!passes_files) memory->memory.file.reset();
  if (memory->memory.file == nullptr && memory->memory.path.empty() &&
      memory->memory.handle.empty()) {
    return Error{ErrorCode::impossible,
                 "this tier is exported as a descriptor, which goes along with the answer over the "
                 "server's Unix socket only (--unix), to a process of the server's user"};
  }
  MutexLock lock(core_->mutex);
  CAIRN_TRY(core_->check_usable());
  if (core_->changing) {
    return Error{ErrorCode::state_conflict,
                 "the cache is being changed; once that has ended the tier can be exported"};
  }
  core_->mapped[index_of(tier)] = true;
  return memory;
}

CacheStats Cache::stats() const {
  const CacheCore& core = *core_;
  CacheStats stats;
  stats.name = core.config.name;
  MutexLock lock(core.mutex);
  for (Tier tier : kTiers) {
    const std::size_t i = index_of(tier);
    TierStats& out = stats.tiers[i];
    if (!core.spaces[i]) continue;
    const SlotPool& slots = core.store.pool(tier);
    out.present = true;
    out.capacity_blocks = slots.capacity();
    for (std::size_t s = 0; s < kNumSlotStates; ++s) {
      out.blocks[s] = slots.count(static_cast<SlotState>(s));
    }
    out.leased_blocks = slots.leased_count();
    out.hit_blocks = core.hits[i];
    for (std::size_t r = 0; r < kNumEvictionReasons; ++r) {
      out.evictions[r] = core.store.evictions(tier, static_cast<EvictionReason>(r));
    }
    out.checksum_failures = core.checksum_failures[i];
    out.pressure = core.gauges[i]->level();
    for (std::size_t to = 0; to < kNumTiers; ++to) {
      const CacheCore::Route& route = core.routes[i][to];
      stats.routes[i][to] = {.blocks = route.blocks,
                             .bytes = route.bytes,
                             .in_flight_blocks = route.in_flight_blocks,
                             .durations = route.durations.snapshot()};
    }
  }
  stats.disk_admission = core.disk_admission;
  stats.disk_scrub = core.disk_scrub;
  stats.disk_damage = core.disk_damage;
  stats.disk_full = core.disk_full;
  stats.matches = core.matches;
  stats.miss_blocks = core.misses;
  stats.leases = core.leases.size();
  stats.lease_expirations = core.lease_expirations;
  stats.commits = core.commits;
  stats.duplicates = core.duplicates;
  stats.metadata_bytes = core.store.memory_bytes();
  return stats;
}

Result<BlockList> Cache::list(const BlockListRequest& request) const {
  const CacheCore& core = *core_;
  if (request.tier) CAIRN_TRY(core.check_tier(*request.tier));
  // A cursor is the number of a slot, counted through all tiers.
  // Each tier has as many numbers as it may have slots: it may grow while a client reads on.
  std::array<std::uint64_t, kNumTiers + 1> starts{};
  for (std::size_t i = 0; i < kNumTiers; ++i) starts[i + 1] = starts[i] + kMaxSlots;
  BlockList result;
  std::uint64_t next = request.cursor;
  std::uint64_t end = starts.back();
  if (request.tier) {
    next = std::max(next, starts[index_of(*request.tier)]);
    end = starts[index_of(*request.tier) + 1];
  }
  const auto skip_unused = [&](std::uint64_t& at) {
    while (at < end) {
      const auto tier = static_cast<std::size_t>(at / kMaxSlots);
      if (at - starts[tier] < core.store.pool(kTiers[tier]).end()) return;
      at = starts[tier + 1];
    }
  };
  while (next < end && result.blocks.size() < request.limit) {
    MutexLock lock(core.mutex);
    CAIRN_TRY(core.check_usable());
    skip_unused(next);
    const std::uint64_t step_end = std::min(end, next + kListStep);
    for (; next < step_end && result.blocks.size() < request.limit; ++next) {
      const auto tier = static_cast<std::size_t>(next / kMaxSlots);
      const SlotRef at(kTiers[tier], static_cast<SlotNumber>(next - starts[tier]));
      if (!core.store.pool(at.tier()).exists(at.slot())) continue;
      const SlotState state = core.store.pool(at.tier()).state(at.slot());
      const bool wanted = request.state ? state == *request.state : state != SlotState::free;
      if (wanted) result.blocks.push_back(describe(core.store, at));
    }
    skip_unused(next);
  }
  result.next_cursor = next < end ? next : 0;
  return result;
}

Result<std::string> Cache::metadata(KeyView key) const {
  CacheCore& core = *core_;
  Section section(core);
  CAIRN_TRY(core.check_usable());
  const EntryNumber entry = core.store.find(key, section.now());
  if (entry == kNoEntry) return unknown_key(core, key);
  const auto& metadata = core.store.entry(entry).metadata;
  return metadata ? *metadata : std::string();
}

Result<> Cache::set_metadata(KeyView key, std::string json) {
  CacheCore& core = *core_;
  CAIRN_TRY(core.check_metadata(json.size()));
  Section section(core);
  CAIRN_TRY(core.check_usable());
  const EntryNumber entry = core.store.find(key, section.now());
  if (entry == kNoEntry) return unknown_key(core, key);
  ++core.store.entry(entry).epoch;
  core.store.set_metadata(entry, std::move(json));
  return {};
}

}  // namespace cairn
