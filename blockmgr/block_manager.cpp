#include "blockmgr/block_manager.hpp"

#include <algorithm>
#include <cctype>
#include <map>
#include <new>
#include <set>
#include <string>
#include <thread>

#include "base/random.hpp"
#include "blockmgr/cache_core.hpp"
#include "blockmgr/disk_place.hpp"
#include "blockmgr/disk_recovery.hpp"
#include "blockmgr/slot_totals.hpp"
#include "blockmgr/tier_memory.hpp"
#include "layouts/builder.hpp"
#include "transport/slot_file.hpp"

namespace cairn {
namespace {

constexpr std::size_t kMaxNameBytes = 64;
// How often the checkpointing thread looks whether a log is half full or the period over.
constexpr std::chrono::milliseconds kCheckpointLook{200};

Error out_of_range(std::string detail) { return {ErrorCode::out_of_range, std::move(detail)}; }

Result<> check_name(const std::string& name) {
  const bool fine = !name.empty() && name.size() <= kMaxNameBytes && name != "." && name != ".." &&
                    std::all_of(name.begin(), name.end(), [](unsigned char c) {
                      return std::isalnum(c) != 0 || c == '.' || c == '_' || c == '-';
                    });
  if (fine) return {};
  return out_of_range(
      "a cache's name is 1 to 64 letters, digits, '.', '_' or '-', and not . or ..");
}

LayoutConfig tier_shape(const CacheConfig& config, Tier tier) {
  LayoutConfig shape = config.shape;
  shape.num_blocks = config.tiers[index_of(tier)]->num_blocks;
  return shape;
}

Result<> check_config(const CacheConfig& config, const BlockManagerOptions& options) {
  CAIRN_TRY(check_name(config.name));
  if (config.default_lease_ms < 1 || config.default_lease_ms > options.max_lease_ms) {
    return out_of_range("default_lease_ms is " + std::to_string(config.default_lease_ms) +
                        ", not 1 to " + std::to_string(options.max_lease_ms));
  }
  std::uint64_t slots = 0;
  bool any = false;
  for (Tier tier : kTiers) {
    if (!config.tiers[index_of(tier)]) continue;
    any = true;
    slots += config.tiers[index_of(tier)]->num_blocks;
    CAIRN_TRY(validate(tier_shape(config, tier)));
  }
  if (!any) return Error{ErrorCode::impossible_shape, "a cache has at least one tier"};
  if (slots > kMaxSlots) {
    return Error{ErrorCode::impossible_shape, "the tiers have " + std::to_string(slots) +
                                                  " blocks together, not up to " +
                                                  std::to_string(kMaxSlots)};
  }
  return {};
}

// With what was left out: a disk tier's path is the cache's name.
CacheConfig filled_in(CacheConfig config) {
  auto& disk = config.tiers[index_of(Tier::disk)];
  if (disk && disk->path.empty()) disk->path = config.name;
  return config;
}

std::string disk_path(const CacheConfig& config) {
  const auto& disk = config.tiers[index_of(Tier::disk)];
  return disk ? disk->path : std::string();
}

// One file, however it is written, or one that is a folder of the other.
bool overlap(const std::filesystem::path& a, const std::filesystem::path& b) {
  const auto x = a.lexically_normal();
  const auto y = b.lexically_normal();
  const auto [at_x, at_y] = std::mismatch(x.begin(), x.end(), y.begin(), y.end());
  return at_x == x.end() || at_y == y.end();
}

// The files of a disk tier and its index; none without one. Blocks on I/O.
void remove_disk_tier(const std::vector<std::filesystem::path>& files) {
  if (files.empty()) return;
  SlotJournal::remove(files.front());
  std::error_code ignored;
  for (const auto& file : files) std::filesystem::remove(file, ignored);
}

// A disk tier that was made goes again where the cache that it was made for does not come to be.
class NewDiskTier {
 public:
  NewDiskTier() = default;
  NewDiskTier(const NewDiskTier&) = delete;
  NewDiskTier& operator=(const NewDiskTier&) = delete;
  ~NewDiskTier() { remove_disk_tier(files_); }
  void made(std::vector<std::filesystem::path> files) { files_ = std::move(files); }
  void keep() { files_.clear(); }

 private:
  std::vector<std::filesystem::path> files_;
};

// A device that is not there is as impossible as a shape that cannot be.
Result<> check_device(const CacheConfig& config, Tier tier, const DeviceRuntime& runtime) {
  const int wanted = config.tiers[index_of(tier)]->device_id;
  const auto devices = runtime.devices();
  const bool found =
      std::any_of(devices.begin(), devices.end(),
                  [wanted](const DeviceInfo& device) { return device.id == wanted; });
  if (found) return {};
  return Error{ErrorCode::impossible, "tiers." + std::string(to_string(tier)) + ".device_id is " +
                                          std::to_string(wanted) + "; the " +
                                          std::string(runtime.name()) + " runtime has " +
                                          std::to_string(devices.size()) + " devices"};
}

// Who asks for a cache that is there believes that it lies in the memory that he names.
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
  Impl(DeviceRuntime& runtime, TransferEngine& engine, const Clock& clock, Logger& log,
       BlockManagerOptions options, const GroupOptions& group_options)
      : services(std::make_shared<CacheServices>(runtime, engine, clock, log, std::move(options))),
        groups(
            std::make_unique<Groups>(Groups::Services{.runtime = runtime,
                                                      .transfers = services->transfers,
                                                      .log = log,
                                                      .clock = clock,
                                                      .lease_ms = services->options.max_lease_ms},
                                     group_options, make_local_collectives(group_options.host))),
        snapshots(std::in_place, services) {}

  struct Member {
    std::shared_ptr<Cache> cache;
    std::vector<std::filesystem::path> disk_files;  // resolved; none without a disk tier
  };

  // Files are claimed by locks, handles by name.
  Result<> check_handle(const ExportedMemory& memory) const;
  Result<BlockLayout> make_layout(const CacheConfig& config, Tier tier) const;
  std::vector<PreparedMemory> prepare_for_disk(const CacheCore::Parts& parts) const;
  Result<SlotFile> open_disk_tier(const CacheConfig& config, Member& member);
  // Gives the blocks back that an earlier run left, and notes what changes from here on.
  Result<> start_disk_tier(CacheCore& core, bool is_new) const;
  bool checkpoint(CacheCore& core) const;  // false where it failed, which is logged
  void checkpoint_when_due();
  Result<Member> make_cache(const CacheConfig& config);

  const std::shared_ptr<CacheServices> services;
  std::unique_ptr<Groups> groups;
  std::optional<Snapshots> snapshots;  // until the manager goes
  Mutex creating;                      // one creation at a time, beside the lookups
  mutable Mutex mutex;
  std::map<std::string, Member, std::less<>> members CAIRN_GUARDED_BY(mutex);
  std::unordered_map<std::uint32_t, std::shared_ptr<Cache>> by_number CAIRN_GUARDED_BY(mutex);
  std::uint32_t last_number CAIRN_GUARDED_BY(creating) = 0;
  SlotTotals retired CAIRN_GUARDED_BY(mutex);  // of caches that were dropped
  RandomBytes random CAIRN_GUARDED_BY(creating);

  Mutex checkpoint_mutex;
  Condition checkpoint_wake;
  bool stopping CAIRN_GUARDED_BY(checkpoint_mutex) = false;
  std::thread checkpointer;
};

namespace {

std::vector<std::filesystem::path> disk_roots(const BlockManagerOptions& options) {
  if (!options.disk.folders.empty()) return options.disk.folders;
  return {options.data_dir / "disk"};
}

}  // namespace

BlockManager::BlockManager(DeviceRuntime& runtime, TransferEngine& engine, const Clock& clock,
                           Logger& log, BlockManagerOptions options, GroupOptions groups)
    : impl_(std::make_unique<Impl>(runtime, engine, clock, log, std::move(options),
                                   std::move(groups))) {
  for (const auto& root : disk_roots(impl_->services->options)) {
    for (const auto& path : remove_unfinished(root)) {
      log.info("a slot file that was never finished is removed", {{"path", path.string()}});
    }
  }
  if (impl_->services->options.disk.checkpoint_period_ms > 0) {
    impl_->checkpointer = std::thread([impl = impl_.get()] { impl->checkpoint_when_due(); });
  }
}

BlockManager::~BlockManager() {
  // The operations of both hold caches and leases.
  impl_->groups.reset();
  impl_->snapshots.reset();
  if (impl_->checkpointer.joinable()) {
    {
      MutexLock lock(impl_->checkpoint_mutex);
      impl_->stopping = true;
    }
    impl_->checkpoint_wake.notify_all();
    impl_->checkpointer.join();
  }
  checkpoint();
  for (const auto& cache : caches()) {
    Section section(*cache->core_);
    if (!cache->core_->dropped) cache->core_->shut(section);
  }
  impl_->services->jobs.wait_empty();
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
  if (tier == Tier::device) {
    return std::move(placed)
        .allocate_device(services->runtime,
                         {.device_id = wanted.device_id, .by_descriptor = wanted.by_descriptor})
        .build();
  }
  return std::move(placed)
      .allocate_pinned(services->runtime,
                       {.numa_aware = wanted.numa_aware, .device_id = wanted.device_id})
      .build();
}

Result<BlockManager::Impl::Member> BlockManager::Impl::make_cache(const CacheConfig& config) {
  CAIRN_TRY(check_config(config, services->options));
  Member member;
  CacheCore::Parts parts{.config = config, .number = ++last_number, .hash_seed = random.next_u64()};
  // Files last: memory that is refused leaves none behind.
  for (Tier tier : {Tier::device, Tier::pinned}) {
    if (!config.tiers[index_of(tier)]) continue;
    auto layout = make_layout(config, tier);
    if (!layout) return std::move(layout).error();
    parts.layouts[index_of(tier)].emplace(std::move(*layout));
  }
  bool is_new = false;
  NewDiskTier new_disk_tier;
  if (config.tiers[index_of(Tier::disk)]) {
    auto file = open_disk_tier(config, member);
    if (!file) return std::move(file).error();
    is_new = file->is_new;
    if (is_new) {
      new_disk_tier.made(member.disk_files);
      SlotJournal::remove(member.disk_files.front());
    }
    parts.journal =
        std::make_unique<SlotJournal>(SlotJournal::Options{.path = member.disk_files.front(),
                                                           .file_id = file->slots->file_id(),
                                                           .num_slots = file->slots->num_slots()});
    parts.layouts[index_of(Tier::disk)].emplace(std::move(file->layout));
    parts.disk_slots = std::move(file->slots);
    parts.prepared = prepare_for_disk(parts);
  }
  try {
    auto core = std::make_shared<CacheCore>(services, std::move(parts));
    if (core->journal) CAIRN_TRY(start_disk_tier(*core, is_new));
    member.cache = std::shared_ptr<Cache>(new Cache(std::move(core)));
  } catch (const std::bad_alloc&) {
    return Error{ErrorCode::no_capacity, "there is no memory for the cache's index"};
  }
  new_disk_tier.keep();
  return member;
}

// The pinned tier is what moves to and from disk.
std::vector<PreparedMemory> BlockManager::Impl::prepare_for_disk(
    const CacheCore::Parts& parts) const {
  std::vector<PreparedMemory> prepared;
  const auto& pinned = parts.layouts[index_of(Tier::pinned)];
  if (!pinned) return prepared;
  for (const RegionView& region : pinned->regions()) {
    auto memory = PreparedMemory::of(services->engine.disk(), {region.data(), region.size_bytes()});
    if (memory) {
      prepared.push_back(std::move(*memory));
      continue;
    }
    services->log.info("disk I/O goes without registered buffers",
                       {{"cache", parts.config.name}, {"why", memory.error().detail}});
    break;
  }
  return prepared;
}

Result<SlotFile> BlockManager::Impl::open_disk_tier(const CacheConfig& config, Member& member) {
  {
    MutexLock lock(mutex);
    for (const auto& [name, other] : members) {
      const std::string taken = disk_path(other.cache->config());
      if (!taken.empty() && overlap(taken, disk_path(config))) {
        return Error{ErrorCode::state_conflict, "the disk path \"" + disk_path(config) +
                                                    "\" is taken: cache " + name + " has \"" +
                                                    taken + "\""};
      }
    }
  }
  const DiskOptions& options = services->options.disk;
  for (const auto& root : disk_roots(services->options)) {
    auto file = prepare_disk_place({root, disk_path(config)});
    if (!file) return std::move(file).error();
    member.disk_files.push_back(std::move(*file));
  }
  auto file = open_slot_file({.paths = member.disk_files,
                              .owner = config.name,
                              .shape = tier_shape(config, Tier::disk),
                              .replace_other_shape = options.replace_other_shape,
                              .direct = options.direct,
                              .check_every_read = options.checksums});
  if (file && !file->not_direct.empty()) {
    services->log.info("disk tier goes through the page cache",
                       {{"cache", config.name}, {"why", file->not_direct}});
  }
  return file;
}

Result<> BlockManager::Impl::start_disk_tier(CacheCore& core, bool is_new) const {
  bool from_headers = false;
  bool wants_checkpoint = false;
  if (!is_new) {
    auto recovery = recover_disk_tier(core, {*core.journal, services->engine.disk()});
    if (!recovery) return std::move(recovery).error();
    from_headers = recovery->from_headers;
    // Mended headers are worth a checkpoint too: it flushes them, and the old logs go.
    wants_checkpoint = from_headers || recovery->mended > 0;
    if (recovery->not_mended) {
      services->log.warning(
          "headers that a power cut may have taken were not looked after",
          {{"cache", core.config.name}, {"detail", recovery->not_mended->detail}});
    }
    services->log.info("disk tier recovered",
                       {{"cache", core.config.name},
                        {"blocks", recovery->restored},
                        {"from", from_headers ? "headers" : "checkpoint and log"},
                        {"torn", recovery->torn},
                        {"expired", recovery->expired},
                        {"mended", recovery->mended},
                        {"stale", recovery->stale}});
  }
  CAIRN_TRY(core.journal->begin());
  {
    MutexLock lock(core.mutex);
    core.store.note_changes(*core.journal, *core.disk_slots);
  }
  // A log alone does not tell what the headers told.
  if (wants_checkpoint) checkpoint(core);
  return {};
}

bool BlockManager::Impl::checkpoint(CacheCore& core) const {
  auto written = core.checkpoint();
  if (written) return true;
  services->log.warning("the index of a disk tier could not be made durable",
                        {{"cache", core.config.name}, {"detail", written.error().detail}});
  return false;
}

// The log keeps what a killed process knew; checkpoints keep the log short, and survive a power
// cut.
void BlockManager::Impl::checkpoint_when_due() {
  const Duration period = std::chrono::milliseconds(services->options.disk.checkpoint_period_ms);
  TimePoint last = services->clock.now();
  std::set<std::uint32_t> failing;  // tried again with the next period: a full disk stays full
  while (true) {
    {
      MutexLock lock(checkpoint_mutex);
      if (stopping) return;
      checkpoint_wake.wait_for(checkpoint_mutex, kCheckpointLook);
      if (stopping) return;
    }
    const TimePoint now = services->clock.now();
    const bool all = now - last >= period;
    if (all) last = now;
    std::vector<std::shared_ptr<Cache>> due;
    {
      MutexLock lock(mutex);
      for (const auto& [name, member] : members) due.push_back(member.cache);
    }
    for (const auto& cache : due) {
      CacheCore& core = *cache->core_;
      if (!core.journal) continue;
      bool wanted = false;
      {
        MutexLock lock(core.mutex);
        const bool early = core.journal->wants_checkpoint() && !failing.contains(core.number);
        wanted = !core.dropped && (early || (all && core.journal->has_changes()));
      }
      if (!wanted) continue;
      if (checkpoint(core)) {
        failing.erase(core.number);
      } else {
        failing.insert(core.number);
      }
    }
  }
}

void BlockManager::checkpoint() {
  for (const auto& cache : caches()) {
    if (cache->core_->journal) impl_->checkpoint(*cache->core_);
  }
}

Result<BlockManager::Created> BlockManager::create_cache(const CacheConfig& given) {
  const CacheConfig config = filled_in(given);
  MutexLock creating(impl_->creating);
  {
    MutexLock lock(impl_->mutex);
    if (auto at = impl_->members.find(config.name); at != impl_->members.end()) {
      CacheCore& core = *at->second.cache->core_;
      if (MutexLock core_lock(core.mutex); core.dropped) {
        return Error{ErrorCode::state_conflict, "cache " + config.name + " is being removed"};
      }
      if (at->second.cache->config() == config) {
        CAIRN_TRY(check_imports(*at->second.cache, config));
        return Created{at->second.cache, false};
      }
      return Error{ErrorCode::cache_exists,
                   "cache " + config.name + " exists with another configuration"};
    }
    if (impl_->members.size() >= impl_->services->options.max_caches) {
      return Error{ErrorCode::too_many,
                   std::to_string(impl_->members.size()) + " caches, and no more may be"};
    }
  }
  auto member = impl_->make_cache(config);
  if (!member) return std::move(member).error();
  auto cache = member->cache;
  MutexLock lock(impl_->mutex);
  impl_->by_number.emplace(cache->core_->number, cache);
  impl_->members.emplace(config.name, std::move(*member));
  return Created{std::move(cache), true};
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
  CacheCore& core = *(*cache)->core_;
  std::uint64_t ended = 0;
  {
    Section section(core);
    CAIRN_TRY(core.check_usable());
    core.end_overdue(section);
    ended = core.leases.size();
    if (ended > 0 && !force) {
      return Error{ErrorCode::leased,
                   "cache " + std::string(name) + " has " + std::to_string(ended) + " leases"};
    }
    core.shut(section);
  }
  {
    // One that is under way ends first; none begins any more. It may wait for a disk, so no lock of
    // the manager's is held.
    MutexLock no_checkpoint(core.checkpointing);
  }
  MutexLock creating(impl_->creating);
  std::vector<std::filesystem::path> disk_files;
  {
    MutexLock lock(impl_->mutex);
    disk_files = impl_->members.find(name)->second.disk_files;
  }
  // The engine may still be using the file; its name is free for the next one.
  remove_disk_tier(disk_files);
  MutexLock lock(impl_->mutex);
  const auto at = impl_->members.find(name);
  impl_->retired.retire(core);
  impl_->by_number.erase(core.number);
  impl_->members.erase(at);
  return ended;
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
  if (impl_->snapshots->cancel(id)) return transfer(id);
  auto owner = impl_->services->transfers.owner(id);
  if (!owner) return std::move(owner).error();
  if (const auto core = owner->lock()) {
    Section section(*core);
    if (auto at = core->transfers.find(id); at != core->transfers.end()) {
      const auto move = at->second;
      core->cancel_move(section, move);
    }
  } else {
    impl_->groups->cancel(id);
  }
  return transfer(id);
}

Groups& BlockManager::groups() { return *impl_->groups; }

BlockManager::TransferCounts BlockManager::transfer_counts() const {
  const auto counts = impl_->services->transfers.counts();
  return {.queued = counts.queued, .running = counts.running};
}

std::vector<NamedAllocator> BlockManager::allocators() const {
  SlotTotals slots;
  {
    MutexLock lock(impl_->mutex);
    slots = impl_->retired;
    for (const auto& [name, member] : impl_->members) slots.add(*member.cache->core_);
  }
  std::vector<NamedAllocator> all = slots.named();
  all.push_back({"request_staging", "host", impl_->services->staging.statistics()});
  return all;
}

void BlockManager::tick() {
  for (const auto& cache : caches()) {
    {
      Section section(*cache->core_);
      if (cache->core_->dropped) continue;
      cache->core_->end_overdue(section);
      cache->core_->store.expire(section.now());
    }
    cache->core_->scrub();
  }
}

const BlockManagerOptions& BlockManager::options() const { return impl_->services->options; }

}  // namespace cairn
