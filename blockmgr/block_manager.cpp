#include "blockmgr/block_manager.hpp"

#include <algorithm>
#include <iterator>
#include <map>
#include <new>
#include <string>

#include "base/random.hpp"
#include "blockmgr/cache/cache_resize.hpp"
#include "blockmgr/cache/tier_memory.hpp"
#include "blockmgr/checkpointer.hpp"
#include "blockmgr/core/cache_core.hpp"
#include "blockmgr/disk/disk_place.hpp"
#include "blockmgr/disk/learnt_file.hpp"
#include "blockmgr/disk/pins_file.hpp"
#include "blockmgr/disk_tier/disk_tier.hpp"
#include "blockmgr/index/config_check.hpp"
#include "blockmgr/slot_totals.hpp"
#include "layouts/builder.hpp"

namespace cairn {
namespace {

constexpr std::string_view kRequestStaging = "request_staging";

// impossible if the device does not exist.
Result<> check_device(const CacheConfig& config, Tier tier, const DeviceRuntime& runtime) {
  const int wanted = config.tiers[index_of(tier)]->device_id;
  const auto devices = runtime.devices();
  const bool found =
      std::any_of(devices.begin(), devices.end(),
                  [wanted](const DeviceInfo& device) { return device.id == wanted; });
  if (found) return {};
  for (const LeftOutDevice& left_out : runtime.left_out()) {
    if (left_out.id != wanted) continue;
    // The device of pinned memory only sets where it is near.
    if (tier == Tier::pinned) return {};
    return Error{ErrorCode::impossible, "tiers." + std::string(to_string(tier)) + ".device_id is " +
                                            std::to_string(wanted) + ": " + left_out.why};
  }
  return Error{ErrorCode::impossible, "tiers." + std::string(to_string(tier)) + ".device_id is " +
                                          std::to_string(wanted) + "; the " +
                                          std::string(runtime.name()) + " runtime has " +
                                          std::to_string(devices.size()) + " devices"};
}

// The caller expects the existing cache to lie in the memory that it names.
Result<> check_imports(const Cache& cache, const CacheConfig& asked) {
  for (Tier tier : kTiers) {
    const auto& had = cache.config().tiers[index_of(tier)];
    if (!had || !had->import) continue;
    CAIRN_TRY(check_still_exported(
        {.asked = *asked.tiers[index_of(tier)]->import, .had = *had->import}, *cache.layout(tier)));
  }
  return {};
}

}  // namespace

struct BlockManager::Impl {
  Impl(DeviceRuntime& runtime, TransferScheduler& scheduler, const Clock& clock, Logger& log,
       BlockManagerOptions options, const GroupOptions& group_options)
      : services(
            std::make_shared<CacheServices>(runtime, scheduler, clock, log, std::move(options))),
        groups(
            std::make_unique<Groups>(Groups::Services{.runtime = runtime,
                                                      .device_memory = scheduler.device_memory(),
                                                      .transfers = services->transfers,
                                                      .log = log,
                                                      .clock = clock,
                                                      .lease_ms = services->options.max_lease_ms},
                                     group_options, make_local_collectives(group_options.host))),
        engine_memories(std::make_unique<EngineMemories>(services)),
        snapshots(std::in_place, services) {}

  struct Member {
    std::shared_ptr<Cache> cache;
    std::vector<std::filesystem::path> disk_files;  // resolved; empty without a disk tier
    bool had_files = false;                         // they existed before the cache was made
    std::uint32_t asked_disk_blocks = 0;            // as requested; the tier may have another size
  };

  // Checks that no other cache uses the memory. Files are locked instead.
  Result<> check_handle(const ExportedMemory& memory) const;
  Result<BlockLayout> make_layout(const CacheConfig& config, Tier tier) const;
  Result<> check_disk_path(const CacheConfig& config) const;
  Result<Member> make_cache(CacheConfig config) CAIRN_REQUIRES(creating);
  void resize_disk_tier(Member& member);
  static bool is_as_asked(const Member& member, const CacheConfig& asked);
  void remove(std::string_view name, bool with_files) CAIRN_EXCLUDES(creating);

  const std::shared_ptr<CacheServices> services;
  std::unique_ptr<Groups> groups;
  std::unique_ptr<EngineMemories> engine_memories;
  std::optional<Snapshots> snapshots;  // until the manager's destructor
  Mutex creating;                      // one creation at a time; lookups go on
  mutable Mutex mutex;
  std::map<std::string, Member, std::less<>> members CAIRN_GUARDED_BY(mutex);
  std::unordered_map<std::uint32_t, std::shared_ptr<Cache>> by_number CAIRN_GUARDED_BY(mutex);
  std::uint32_t last_number CAIRN_GUARDED_BY(creating) = 0;
  SlotTotals retired CAIRN_GUARDED_BY(mutex);  // of dropped caches
  RandomBytes random CAIRN_GUARDED_BY(creating);

  std::optional<Checkpointer> checkpointer;
};

BlockManager::BlockManager(DeviceRuntime& runtime, TransferScheduler& scheduler, const Clock& clock,
                           Logger& log, BlockManagerOptions options, GroupOptions groups)
    : impl_(std::make_unique<Impl>(runtime, scheduler, clock, log, std::move(options),
                                   std::move(groups))) {
  for (const auto& root : disk_roots(impl_->services->options)) {
    for (const auto& path : remove_unfinished(root)) {
      log.info("unfinished slot file removed", {{"path", path.string()}});
    }
  }
  if (impl_->services->options.disk.checkpoint_period_ms > 0) {
    impl_->checkpointer.emplace(
        impl_->services->clock,
        Checkpointer::Options{
            .period = std::chrono::milliseconds(impl_->services->options.disk.checkpoint_period_ms),
            .caches = [impl = impl_.get()] {
              std::vector<std::shared_ptr<CacheCore>> cores;
              MutexLock lock(impl->mutex);
              for (const auto& [name, member] : impl->members)
                cores.push_back(member.cache->core());
              return cores;
            }});
  }
}

BlockManager::~BlockManager() {
  // Operations of both hold caches and leases.
  impl_->groups.reset();
  impl_->engine_memories.reset();
  impl_->snapshots.reset();
  impl_->checkpointer.reset();
  checkpoint();
  for (const auto& cache : caches()) {
    CacheLock locked(*cache->core(), LockUse::upkeep);
    if (!locked->dropped) locked.shut();
  }
  impl_->services->jobs.wait_empty(impl_->services->scheduler.executor());
  if (impl_->services->record) impl_->services->record->close();
}

Result<> BlockManager::Impl::check_handle(const ExportedMemory& memory) const {
  MutexLock lock(mutex);
  for (const auto& [name, member] : members) {
    for (const auto& tier : member.cache->config().tiers) {
      if (!tier || !tier->import || !is_known_same(tier->import->memory, memory)) continue;
      return Error{ErrorCode::state_conflict,
                   "the memory of memory.import is taken: cache " + name + " lies in it"};
    }
  }
  return {};
}

Result<BlockLayout> BlockManager::Impl::make_layout(const CacheConfig& config, Tier tier) const {
  const TierConfig& wanted = *config.tiers[index_of(tier)];
  CAIRN_TRY(check_device(config, tier, services->runtime));
  auto shaped = LayoutBuilder().config(tier_shape(config, tier));
  auto placed = wanted.layout == LayoutKind::layer_separate
                    ? std::move(shaped).layer_separate(wanted.block_dim)
                    : std::move(shaped).fully_contiguous();
  if (wanted.import) {
    CAIRN_TRY(check_import(*wanted.import, services->options.import_folders));
    CAIRN_TRY(check_handle(wanted.import->memory));
    return import_layout(
        std::move(placed),
        {.memory = *wanted.import,
         .runtime = services->runtime,
         .options = {.kind = tier == Tier::device ? StorageKind::device : StorageKind::pinned,
                     .device_id = wanted.device_id}});
  }
  if (wanted.unified) {
    return std::move(placed).allocate_unified(services->runtime, wanted.device_id).build();
  }
  if (tier == Tier::device) {
    const DeviceRuntime::DeviceOptions options{.device_id = wanted.device_id,
                                               .by_descriptor = wanted.by_descriptor};
    return std::move(placed)
        .allocate_device(
            services->runtime, options,
            [this](std::uint64_t size_bytes, const DeviceRuntime::DeviceOptions& where) {
              return services->scheduler.allocate_device(size_bytes, where);
            })
        .build();
  }
  return std::move(placed)
      .allocate_pinned(services->runtime,
                       {.numa_aware = wanted.numa_aware, .device_id = wanted.device_id})
      .build();
}

Result<> BlockManager::Impl::check_disk_path(const CacheConfig& config) const {
  MutexLock lock(mutex);
  for (const auto& [name, other] : members) {
    const std::string taken = disk_path(other.cache->config());
    if (!taken.empty() && overlap(taken, disk_path(config))) {
      return Error{ErrorCode::state_conflict, "the disk path \"" + disk_path(config) +
                                                  "\" is taken: cache " + name + " has \"" + taken +
                                                  "\""};
    }
  }
  return {};
}

Result<BlockManager::Impl::Member> BlockManager::Impl::make_cache(CacheConfig config) {
  CAIRN_TRY(check_config(config, services->options));
  Member member;
  CacheCore::Parts parts{.config = config,
                         .number = ++last_number,
                         .hash_seed = random.next_u64(),
                         .memory_id = random.next_u64()};
  // Files last, so that refused memory leaves no files behind.
  for (Tier tier : {Tier::device, Tier::pinned}) {
    const auto& wanted = config.tiers[index_of(tier)];
    if (!wanted) continue;
    if (wanted->import && wanted->import->memory.kind != ExportedMemory::Kind::cuda_ipc) {
      auto counted =
          MemoryQuotaShare::take(services->registered, wanted->import->memory.size_bytes);
      if (!counted) return std::move(counted).error();
      parts.imported.push_back(std::move(*counted));
    }
    auto layout = make_layout(config, tier);
    if (!layout) return std::move(layout).error();
    parts.layouts[index_of(tier)].emplace(std::move(*layout));
  }
  bool is_new = false;
  std::uint64_t damaged_slot_files = 0;
  NewDiskTier new_disk_tier;
  if (auto& disk_tier = config.tiers[index_of(Tier::disk)]) {
    CAIRN_TRY(check_disk_path(config));
    auto disk = open_disk_tier(config, *services);
    if (!disk) return std::move(disk).error();
    member.disk_files = std::move(disk->files);
    parts.disk_files = member.disk_files;
    is_new = disk->slots.is_new;
    member.had_files = !is_new;
    member.asked_disk_blocks = std::exchange(
        disk_tier->num_blocks, disk->slots.slots->num_slots() / slots_a_block(*disk_tier));
    parts.config = config;
    damaged_slot_files = disk->slots.damage.size();
    if (is_new) {
      new_disk_tier.made(member.disk_files);
      SlotJournal::remove(member.disk_files.front());
      remove_learnt(member.disk_files.front());
      remove_pins(member.disk_files.front());
    }
    const std::unique_ptr<SlotContents>& slots = disk->slots.slots;
    parts.journal =
        std::make_unique<SlotJournal>(SlotJournal::Options{.path = member.disk_files.front(),
                                                           .file_id = slots->file_id(),
                                                           .num_slots = slots->num_slots(),
                                                           .mapped = &services->mapped});
    parts.layouts[index_of(Tier::disk)].emplace(std::move(disk->slots.layout));
    parts.slot_contents = std::move(disk->slots.slots);
    parts.disk_codec = std::make_unique<MediumCodec>(
        MediumCodec::Options{.codec = disk_tier->codec, .clock = services->clock});
    if (const auto& pinned = parts.layouts[index_of(Tier::pinned)]) {
      parts.prepared = prepare_for_disk(*pinned, config.name, *services);
    }
  }
  try {
    auto core = std::make_shared<CacheCore>(services, std::move(parts));
    if (core->journal) {
      auto damage = start_disk_tier(*core, is_new);
      if (!damage) return std::move(damage).error();
      damage->slot_files = damaged_slot_files;
      services->totals.damaged(*damage);
    }
    member.cache = std::make_shared<Cache>(std::move(core));
  } catch (const std::bad_alloc&) {
    return Error{ErrorCode::no_capacity, "there is no memory for the cache's index"};
  }
  new_disk_tier.keep();
  if (member.had_files) resize_disk_tier(member);
  return member;
}

// Resizes a tier whose files have another size than configured, once its blocks are loaded. The
// blocks that fit stay, chosen as in a later change.
void BlockManager::Impl::resize_disk_tier(Member& member) {
  Cache& cache = *member.cache;
  const std::uint32_t had = cache.config().tiers[index_of(Tier::disk)]->num_blocks;
  if (had == member.asked_disk_blocks) return;
  CacheChange change;
  change.num_blocks[index_of(Tier::disk)] = member.asked_disk_blocks;
  // The caller saves the configuration.
  const auto changed = cache.change(change, [](const CacheConfig&) { return Result<>(); });
  const std::string& name = cache.config().name;
  if (changed) {
    services->log.warning(
        "disk tier resized",
        {{"cache", name}, {"num_blocks", member.asked_disk_blocks}, {"before", had}});
    member.asked_disk_blocks = had;
  } else {
    services->log.error("disk tier could not be resized", {{"cache", name},
                                                           {"num_blocks", had},
                                                           {"asked_for", member.asked_disk_blocks},
                                                           {"detail", changed.error().detail}});
  }
}

bool BlockManager::Impl::is_as_asked(const Member& member, const CacheConfig& asked) {
  CacheConfig there = member.cache->config();
  if (there == asked) return true;
  // The tier could not get its size at creation, and has not been changed since.
  auto& disk = there.tiers[index_of(Tier::disk)];
  const auto& made = member.cache->core()->config.tiers[index_of(Tier::disk)];
  if (!disk || disk->num_blocks != made->num_blocks) return false;
  disk->num_blocks = member.asked_disk_blocks;
  return there == asked;
}

void BlockManager::checkpoint() {
  for (const auto& cache : caches()) {
    if (cache->core()->journal) checkpoint_disk_tier(*cache->core());
  }
}

Result<BlockManager::Created> BlockManager::create_cache(const CacheConfig& given) {
  const CacheConfig config = filled_in(given);
  MutexLock creating(impl_->creating);
  {
    MutexLock lock(impl_->mutex);
    if (auto at = impl_->members.find(config.name); at != impl_->members.end()) {
      CacheCore& core = *at->second.cache->core();
      if (CacheLock locked(core, LockUse::upkeep); locked->dropped) {
        return Error{ErrorCode::state_conflict, "cache " + config.name + " is being removed"};
      }
      if (Impl::is_as_asked(at->second, config)) {
        CAIRN_TRY(check_imports(*at->second.cache, config));
        return Created{at->second.cache, false};
      }
      return Error{ErrorCode::cache_exists,
                   "cache " + config.name +
                       " exists with another configuration; PATCH changes its policies and the "
                       "sizes of its pinned and disk tiers"};
    }
    if (impl_->members.size() >= impl_->services->options.max_caches) {
      return Error{ErrorCode::too_many,
                   std::to_string(impl_->members.size()) + " caches exist, which is the limit"};
    }
  }
  auto member = impl_->make_cache(config);
  if (!member) return std::move(member).error();
  auto cache = member->cache;
  MutexLock lock(impl_->mutex);
  impl_->by_number.emplace(cache->core()->number, cache);
  impl_->members.emplace(config.name, std::move(*member));
  return Created{std::move(cache), true};
}

Result<> BlockManager::describe_cache(std::string_view name, const std::string& description) {
  MutexLock creating(impl_->creating);
  std::shared_ptr<Cache> cache;
  std::vector<std::filesystem::path> disk_files;
  {
    MutexLock lock(impl_->mutex);
    const auto at = impl_->members.find(name);
    if (at == impl_->members.end()) {
      return Error{ErrorCode::unknown_cache, "there is no cache " + std::string(name)};
    }
    cache = at->second.cache;
    disk_files = at->second.disk_files;
  }
  if (disk_files.empty()) return {};
  return describe_slot_file(disk_files, *cache->layout(Tier::disk), description);
}

std::vector<LabelledFile> BlockManager::labelled_files() const {
  std::vector<LabelledFile> files;
  for (const auto& root : disk_roots(impl_->services->options)) {
    std::ranges::move(find_labelled_files(root), std::back_inserter(files));
  }
  return files;
}

Result<std::shared_ptr<Cache>> BlockManager::find_cache(std::string_view name) const {
  MutexLock lock(impl_->mutex);
  const auto at = impl_->members.find(name);
  if (at != impl_->members.end()) return at->second.cache;
  return Error{ErrorCode::unknown_cache, "there is no cache " + std::string(name)};
}

std::vector<std::shared_ptr<Cache>> BlockManager::caches() const {
  std::vector<std::shared_ptr<Cache>> all;
  MutexLock lock(impl_->mutex);
  for (const auto& [name, member] : impl_->members) all.push_back(member.cache);
  return all;
}

Result<std::uint64_t> BlockManager::drop_cache(std::string_view name, bool force) {
  auto cache = find_cache(name);
  if (!cache) return std::move(cache).error();
  CacheCore& core = *(*cache)->core();
  std::uint64_t ended = 0;
  {
    CacheLock locked(core, LockUse::upkeep);
    CAIRN_TRY(locked.check_usable());
    locked->leases.end_overdue(locked);
    ended = locked->leases.size();
    if (ended > 0 && !force) {
      return Error{ErrorCode::leased,
                   "cache " + std::string(name) + " has " + std::to_string(ended) + " leases"};
    }
    locked.shut();
  }
  impl_->remove(name, true);
  return ended;
}

void BlockManager::take_back(const Created& created) {
  const std::string& name = created.cache->config().name;
  {
    CacheLock locked(*created.cache->core(), LockUse::upkeep);
    if (locked->dropped) return;
    locked.shut();
  }
  bool had_files = false;
  {
    MutexLock lock(impl_->mutex);
    had_files = impl_->members.find(name)->second.had_files;
  }
  impl_->remove(name, !had_files);
}

void BlockManager::Impl::remove(std::string_view name, bool with_files) {
  std::shared_ptr<Cache> cache;
  std::vector<std::filesystem::path> disk_files;
  {
    MutexLock lock(mutex);
    const Member& member = members.find(name)->second;
    cache = member.cache;
    if (with_files) disk_files = member.disk_files;
  }
  CacheCore& core = *cache->core();
  {
    // Waits for a checkpoint in progress; no new one starts. It may wait for a disk, so the
    // manager's locks are not held.
    MutexLock no_checkpoint(core.checkpointing);
  }
  MutexLock lock_creating(creating);
  // The scheduler may still use the file, but its name is free for the next cache.
  remove_disk_tier(disk_files);
  MutexLock lock(mutex);
  retired.retire(core);
  by_number.erase(core.number);
  members.erase(members.find(name));
}

Result<std::shared_ptr<Cache>> BlockManager::cache_of(const LeaseId& lease) const {
  MutexLock lock(impl_->mutex);
  const auto at = impl_->by_number.find(lease.cache);
  if (at != impl_->by_number.end()) return at->second;
  return Error{ErrorCode::unknown_lease, "there is no such lease"};
}

Result<TransferStatus> BlockManager::transfer(TransferId id) const {
  return impl_->services->transfers.status(id);
}

TransferList BlockManager::transfers(const TransferListRequest& request) const {
  return impl_->services->transfers.list(request);
}

const EventRing& BlockManager::events() const { return impl_->services->events; }

Result<std::string> BlockManager::cache_name_of(TransferId id) const {
  auto owner = impl_->services->transfers.owner(id);
  if (!owner) return std::move(owner).error();
  const auto core = owner->lock();
  return core == nullptr ? std::string() : core->config.name;
}

Result<> BlockManager::watch_transfer(TransferId id,
                                      UniqueFunction<void(const TransferStatus&)> ended) {
  return impl_->services->transfers.watch(id, std::move(ended));
}

Snapshots& BlockManager::snapshots() { return *impl_->snapshots; }

Result<TransferStatus> BlockManager::cancel_transfer(TransferId id) {
  if (impl_->snapshots->cancel(id) || impl_->engine_memories->cancel(id)) return transfer(id);
  auto owner = impl_->services->transfers.owner(id);
  if (!owner) return std::move(owner).error();
  if (const auto core = owner->lock()) {
    CacheLock locked(*core, LockUse::upkeep);
    locked->transfers.cancel(locked, id);
  } else {
    impl_->groups->cancel(id);
  }
  return transfer(id);
}

EngineMemories& BlockManager::engine_memories() { return *impl_->engine_memories; }
const MappedCounts& BlockManager::mapped() const { return impl_->services->mapped; }

Groups& BlockManager::groups() { return *impl_->groups; }

BlockManager::TransferCounts BlockManager::transfer_counts() const {
  const auto counts = impl_->services->transfers.counts();
  return {.queued = counts.queued, .running = counts.running};
}

CacheTotals BlockManager::totals() const { return impl_->services->totals.now(); }

std::vector<NamedAllocator> BlockManager::allocators() const {
  SlotTotals slots;
  {
    MutexLock lock(impl_->mutex);
    slots = impl_->retired;
    for (const auto& [name, member] : impl_->members) slots.add(*member.cache->core());
  }
  std::vector<NamedAllocator> all = slots.named();
  all.push_back({std::string(kRequestStaging), "host", impl_->services->staging.statistics()});
  for (NamedAllocator& one : impl_->groups->allocators()) all.push_back(std::move(one));
  return all;
}

bool BlockManager::give_back_cached(std::string_view allocator) {
  if (allocator != kRequestStaging) return impl_->groups->give_back_cached(allocator);
  impl_->services->staging.trim();
  return true;
}

void BlockManager::reset_peaks(int device_id) {
  for (const auto& cache : caches()) reset_slot_peaks(*cache->core(), device_id);
}

void BlockManager::tick() {
  impl_->engine_memories->tick();
  for (const auto& cache : caches()) {
    {
      CacheLock locked(*cache->core(), LockUse::upkeep);
      if (locked->dropped) continue;
      locked->leases.end_overdue(locked);
      locked->pins.end_overdue(locked);
      locked.expire_keys();
    }
    trim_if_due(*cache->core());
    Scrub::go_on(*cache->core());
  }
}

void BlockManager::follow_reuse() {
  for (const auto& cache : caches()) cache->core()->reuse.catch_up();
}

const BlockManagerOptions& BlockManager::options() const { return impl_->services->options; }

}  // namespace cairn
