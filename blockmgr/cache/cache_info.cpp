// Cache: inspection, statistics and metadata.
#include <algorithm>
#include <iterator>
#include <string>

#include "base/hex.hpp"
#include "blockmgr/cache/block_pieces.hpp"
#include "blockmgr/cache/cache.hpp"
#include "blockmgr/cache/tier_memory.hpp"
#include "blockmgr/core/cache_core.hpp"

namespace cairn {
namespace {

// Slots that list() looks at under one hold of the lock. Describing a slot costs as much as looking
// at kDescribeCost others.
constexpr std::uint32_t kListStep = 4096;
constexpr std::uint32_t kDescribeCost = 64;

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
  info.key = store.key(slot.owner);
  info.parent = store.key_before(slot.owner);
  info.metadata = store.metadata(slot.owner);
  info.epoch = store.epoch(slot.owner);
  return info;
}

}  // namespace

Cache::Cache(std::shared_ptr<CacheCore> core) : core_(std::move(core)) {}
Cache::~Cache() = default;

const CacheConfig& Cache::config() const { return *core_->settings; }
std::uint64_t Cache::block_bytes(KvGroupNumber kv_group) const {
  return cairn::block_bytes(core_->shape(kv_group));
}
Result<std::uint64_t> Cache::part_bytes(KvGroupNumber kv_group,
                                        const std::optional<ShardSelector>& shard) const {
  const LayoutConfig& shape = core_->shape(kv_group);
  CAIRN_TRY(check_part(shape, shard));
  return cairn::part_bytes(shape, shard);
}
std::uint64_t Cache::memory_id() const { return core_->memory_id; }

const BlockLayout* Cache::layout(Tier tier) const {
  return core_->spaces[index_of(tier)] ? &core_->slots(tier) : nullptr;
}

Tier Cache::highest_tier() const {
  return *std::find_if(kTiers.begin(), kTiers.end(),
                       [this](Tier tier) { return layout(tier) != nullptr; });
}

Result<TierMemory> Cache::export_tier(Tier tier, bool passes_files) {
  CAIRN_TRY(core_->check_tier(tier));
  const TierSpace& space = *core_->spaces[index_of(tier)];
  if (!space.in_one_file()) {
    return Error{
        ErrorCode::state_conflict,
        "tiers." + std::string(to_string(tier)) +
            " has grown: its memory is in several files, and only a tier in one can be exported"};
  }
  auto memory = export_layout({.first = space.first_part(), .all = space.slots()});
  if (!memory) return memory;
  const TierConfig& config = *core_->config.tiers[index_of(tier)];
  if (tier == Tier::device) {
    memory->device_uuid = uuid_of(core_->services->runtime, config.device_id);
  }
  memory->layout = config.layout;
  if (config.layout == LayoutKind::layer_separate) memory->block_dim = config.block_dim;
  const auto& groups = core_->config.kv_groups;
  if (groups.empty()) memory->shape = core_->shape(0);
  for (KvGroupNumber group = 0; group < groups.size(); ++group) {
    memory->kv_groups.push_back({.name = groups[group].name,
                                 .shape = groups[group].shape,
                                 .strides = strides_of(core_->layout(tier, group).geometry())});
  }
  if (!passes_files) memory->memory.file.reset();
  if (memory->memory.file == nullptr && memory->memory.path.empty() &&
      memory->memory.handle.empty()) {
    return Error{ErrorCode::impossible,
                 "this tier is exported as a descriptor, which goes along with the answer over the "
                 "server's Unix socket only (--unix), to a process of the server's user"};
  }
  CacheLock locked(*core_, LockUse::look);
  CAIRN_TRY(locked.check_usable());
  if (locked->sizes.under_way()) {
    return Error{ErrorCode::state_conflict,
                 "the cache is being changed; export the tier after that"};
  }
  locked->mapped[index_of(tier)] = true;
  memory->generation = locked->size_changes[index_of(tier)] + 1;
  return memory;
}

CacheStats Cache::stats() const {
  CacheCore& core = *core_;
  CacheStats stats;
  stats.name = core.config.name;
  const MissRatio reuse = miss_ratio();
  stats.requests_followed = reuse.requests;
  stats.follows_lru = reuse.follows_lru ? 1 : 0;
  stats.order_changes = reuse.order_changes;
  for (std::size_t i = 0; i < reuse.points.size(); ++i) {
    stats.miss_ratio_curve[i] = 1 - reuse.points[i].lru;
  }
  CacheLock locked(core, LockUse::look);
  for (Tier tier : kTiers) {
    const std::size_t i = index_of(tier);
    TierStats& out = stats.tiers[i];
    if (!core.spaces[i]) continue;
    const SlotPool& slots = locked->store.pool(tier);
    out.present = true;
    out.capacity_blocks = slots.capacity();
    out.populated_bytes = core.spaces[i]->populated_bytes();
    for (std::size_t s = 0; s < kNumSlotStates; ++s) {
      out.blocks[s] = slots.count(static_cast<SlotState>(s));
    }
    for (std::size_t number = 0; number < core.config.kv_groups.size(); ++number) {
      const KvGroupConfig& group = core.config.kv_groups[number];
      const std::uint64_t blocks =
          locked->store.blocks_of(tier, static_cast<KvGroupNumber>(number));
      out.kv_groups.push_back({.name = group.name,
                               .blocks = blocks,
                               .bytes = blocks * cairn::block_bytes(group.shape)});
    }
    out.slabs_moved = slots.slabs_moved();
    out.leased_blocks = slots.leased_count();
    out.protected_blocks = slots.protected_count();
    out.hit_blocks = locked->counts.hits[i];
    for (std::size_t r = 0; r < kNumEvictionReasons; ++r) {
      out.evictions[r] = locked->store.evictions(tier, static_cast<EvictionReason>(r));
    }
    out.pressure = locked->pressure.level(tier, locked->store.pool(tier));
    for (Tier to : kTiers) {
      const Transfers::Route& route = locked->transfers.route(tier, to);
      stats.routes[i][index_of(to)] = {
          .blocks = route.blocks, .bytes = route.bytes, .in_flight_blocks = route.in_flight_blocks};
    }
  }
  stats.disk_admission = locked->transfers.disk_admission();
  stats.disk_scrub = locked->scrub.stats();
  if (core.disk_codec) stats.disk_codec = core.disk_codec->stats();
  stats.disk_full = locked->transfers.disk_full();
  stats.matches = locked->counts.matches;
  stats.has_remote_tier = core_->config.shared.has_value();
  stats.remote_hit_blocks = locked->counts.remote_hits;
  stats.miss_blocks = locked->counts.misses;
  stats.leases = locked->leases.size();
  stats.lease_expirations = locked->leases.expirations();
  stats.pins = locked->pins.size();
  stats.actions = locked->counts.actions;
  for (std::size_t i = 0; i < kNumPrefetchResults; ++i) {
    stats.prefetched[i] = locked->store.prefetched(static_cast<PrefetchResult>(i));
  }
  stats.commits = locked->counts.commits;
  stats.duplicates = locked->counts.duplicates;
  stats.hints = locked->counts.hints;
  stats.lock_holds = locked->lock_holds;
  stats.metadata_bytes = locked->store.memory_bytes();
  stats.history_bytes = locked->store.history_bytes();
  stats.remembered_blocks = locked->store.ghost_histories();
  return stats;
}

PendingList Cache::pending(const PendingRequest& request) const {
  PendingList list;
  PendingRequest rest = request;
  do {
    CacheLock locked(*core_, LockUse::look);
    PendingList step = locked->transfers.pending(locked, rest);
    list.blocks.insert(list.blocks.end(), std::make_move_iterator(step.blocks.begin()),
                       std::make_move_iterator(step.blocks.end()));
    list.next_cursor = rest.cursor = step.next_cursor;
    rest.limit -= static_cast<std::uint32_t>(step.blocks.size());
  } while (list.next_cursor != 0 && rest.limit > 0);
  return list;
}

Result<BlockList> Cache::list(const BlockListRequest& request) const {
  CacheCore& core = *core_;
  if (request.tier) CAIRN_TRY(core.check_tier(*request.tier));
  // A cursor is a slot number, counted through all tiers. Each tier gets as many numbers as it can
  // ever have slots, because it may grow while a client reads on.
  std::array<std::uint64_t, kNumTiers + 1> starts{};
  for (std::size_t i = 0; i < kNumTiers; ++i) starts[i + 1] = starts[i] + kMaxSlots;
  BlockList result;
  std::uint64_t next = request.cursor;
  std::uint64_t end = starts.back();
  if (request.tier) {
    next = std::max(next, starts[index_of(*request.tier)]);
    end = starts[index_of(*request.tier) + 1];
  }
  const auto skip_unused = [&](CacheLock& locked, std::uint64_t& at) {
    while (at < end) {
      const auto tier = static_cast<std::size_t>(at / kMaxSlots);
      if (at - starts[tier] < locked->store.pool(kTiers[tier]).end()) return;
      at = starts[tier + 1];
    }
  };
  while (next < end && result.blocks.size() < request.limit) {
    CacheLock locked(core, LockUse::look);
    CAIRN_TRY(locked.check_usable());
    skip_unused(locked, next);
    std::uint32_t looked_at = 0;
    for (; next < end && looked_at < kListStep && result.blocks.size() < request.limit; ++next) {
      ++looked_at;
      const auto tier = static_cast<std::size_t>(next / kMaxSlots);
      const SlotRef at(kTiers[tier], static_cast<SlotNumber>(next - starts[tier]));
      if (!locked->store.pool(at.tier()).exists(at.slot())) continue;
      const SlotState state = locked->store.pool(at.tier()).state(at.slot());
      const bool wanted = request.state ? state == *request.state : state != SlotState::free;
      if (!wanted) continue;
      result.blocks.push_back(describe(locked->store, at));
      looked_at += kDescribeCost;
    }
    skip_unused(locked, next);
  }
  result.next_cursor = next < end ? next : 0;
  return result;
}

Result<std::string> Cache::metadata(KeyView key) const {
  CacheCore& core = *core_;
  CacheLock locked(core, LockUse::look);
  CAIRN_TRY(locked.check_usable());
  const EntryNumber entry = locked->store.find(key, locked.now());
  if (entry == kNoEntry) return unknown_key(core, key);
  return std::string(locked->store.metadata(entry));
}

Result<> Cache::set_metadata(KeyView key, std::string json) {
  CacheCore& core = *core_;
  CAIRN_TRY(core.check_metadata(json.size()));
  CacheLock locked(core, LockUse::write);
  CAIRN_TRY(locked.check_usable());
  const EntryNumber entry = locked->store.find(key, locked.now());
  if (entry == kNoEntry) return unknown_key(core, key);
  locked->store.raise_epoch(entry);
  locked->store.set_metadata(entry, std::move(json));
  return {};
}

}  // namespace cairn
