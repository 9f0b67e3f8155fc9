#include "blockmgr/block_manager.hpp"

#include <algorithm>
#include <cctype>
#include <map>
#include <new>
#include <string>

#include "base/random.hpp"
#include "blockmgr/cache_core.hpp"
#include "blockmgr/disk_place.hpp"
#include "blockmgr/slot_totals.hpp"
#include "layouts/builder.hpp"

namespace cairn {
namespace {

constexpr std::size_t kMaxNameBytes = 64;

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

// What the disk tier's path says or leaves to the cache's name.
std::string disk_path(const CacheConfig& config) {
  const auto& disk = config.tiers[index_of(Tier::disk)];
  if (!disk) return {};
  return disk->path.empty() ? config.name : disk->path;
}

// One file, however it is written, or one that is a folder of the other.
bool overlap(const std::filesystem::path& a, const std::filesystem::path& b) {
  const auto x = a.lexically_normal();
  const auto y = b.lexically_normal();
  const auto [at_x, at_y] = std::mismatch(x.begin(), x.end(), y.begin(), y.end());
  return at_x == x.end() || at_y == y.end();
}

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

}  // namespace

struct BlockManager::Impl {
  Impl(DeviceRuntime& runtime, TransferEngine& engine, const Clock& clock, Logger& log,
       BlockManagerOptions options)
      : services(std::make_shared<CacheServices>(runtime, engine, clock, log, std::move(options))),
        snapshots(std::in_place, services) {}

  struct Member {
    std::shared_ptr<Cache> cache;
    std::filesystem::path disk_file;  // resolved; empty without a disk tier
  };

  Result<BlockLayout> make_layout(const CacheConfig& config, Tier tier,
                                  const std::filesystem::path& file) const;
  Result<Member> make_cache(const CacheConfig& config);

  const std::shared_ptr<CacheServices> services;
  std::optional<Snapshots> snapshots;  // until the manager goes
  Mutex creating;                      // one creation at a time, beside the lookups
  mutable Mutex mutex;
  std::map<std::string, Member, std::less<>> members CAIRN_GUARDED_BY(mutex);
  std::unordered_map<std::uint32_t, std::shared_ptr<Cache>> by_number CAIRN_GUARDED_BY(mutex);
  std::uint32_t last_number CAIRN_GUARDED_BY(creating) = 0;
  SlotTotals retired CAIRN_GUARDED_BY(mutex);  // of caches that were dropped
  RandomBytes random CAIRN_GUARDED_BY(creating);
};

BlockManager::BlockManager(DeviceRuntime& runtime, TransferEngine& engine, const Clock& clock,
                           Logger& log, BlockManagerOptions options)
    : impl_(std::make_unique<Impl>(runtime, engine, clock, log, std::move(options))) {}

BlockManager::~BlockManager() {
  impl_->snapshots.reset();
  for (const auto& cache : caches()) {
    Section section(*cache->core_);
    if (!cache->core_->dropped) cache->core_->shut(section);
  }
  impl_->services->jobs.wait_empty();
}

Result<BlockLayout> BlockManager::Impl::make_layout(const CacheConfig& config, Tier tier,
                                                    const std::filesystem::path& file) const {
  const TierConfig& wanted = *config.tiers[index_of(tier)];
  if (tier != Tier::disk) CAIRN_TRY(check_device(config, tier, services->runtime));
  auto shaped = LayoutBuilder().config(tier_shape(config, tier));
  auto placed = wanted.layout == LayoutKind::layer_separate
                    ? std::move(shaped).layer_separate(wanted.block_dim)
                    : std::move(shaped).fully_contiguous();
  if (tier == Tier::device) {
    return std::move(placed).allocate_device(services->runtime, wanted.device_id).build();
  }
  if (tier == Tier::disk) return std::move(placed).allocate_disk(file).build();
  return std::move(placed)
      .allocate_pinned(services->runtime,
                       {.numa_aware = wanted.numa_aware, .device_id = wanted.device_id})
      .build();
}

Result<BlockManager::Impl::Member> BlockManager::Impl::make_cache(const CacheConfig& config) {
  CAIRN_TRY(check_config(config, services->options));
  Member member;
  if (config.tiers[index_of(Tier::disk)]) {
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
    auto file = prepare_disk_place({services->options.data_dir, disk_path(config)});
    if (!file) return std::move(file).error();
    member.disk_file = std::move(*file);
  }
  CacheCore::Parts parts{.config = config, .number = ++last_number, .hash_seed = random.next_u64()};
  for (Tier tier : kTiers) {
    if (!config.tiers[index_of(tier)]) continue;
    auto layout = make_layout(config, tier, member.disk_file);
    if (!layout) return std::move(layout).error();
    parts.layouts[index_of(tier)].emplace(std::move(*layout));
  }
  try {
    auto core = std::make_shared<CacheCore>(services, std::move(parts));
    member.cache = std::shared_ptr<Cache>(new Cache(std::move(core)));
  } catch (const std::bad_alloc&) {
    return Error{ErrorCode::no_capacity, "there is no memory for the cache's index"};
  }
  return member;
}

Result<BlockManager::Created> BlockManager::create_cache(const CacheConfig& config) {
  MutexLock creating(impl_->creating);
  {
    MutexLock lock(impl_->mutex);
    if (auto at = impl_->members.find(config.name); at != impl_->members.end()) {
      CacheCore& core = *at->second.cache->core_;
      if (MutexLock core_lock(core.mutex); core.dropped) {
        return Error{ErrorCode::state_conflict, "cache " + config.name + " is being removed"};
      }
      if (at->second.cache->config() == config) return Created{at->second.cache, false};
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
  // The engine may still be using the file; its name is free for the next one.
  MutexLock creating(impl_->creating);
  MutexLock lock(impl_->mutex);
  const auto at = impl_->members.find(name);
  std::error_code ignored;
  if (!at->second.disk_file.empty()) std::filesystem::remove(at->second.disk_file, ignored);
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
  }
  return transfer(id);
}

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
    Section section(*cache->core_);
    if (cache->core_->dropped) continue;
    cache->core_->end_overdue(section);
    cache->core_->store.expire(section.now());
  }
}

const BlockManagerOptions& BlockManager::options() const { return impl_->services->options; }

}  // namespace cairn
