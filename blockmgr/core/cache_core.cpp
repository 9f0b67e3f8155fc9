#include "blockmgr/core/cache_core.hpp"

#include <algorithm>
#include <string>

#include "base/hex.hpp"
#include "base/thread.hpp"
#include "blockmgr/index/config_check.hpp"

namespace cairn {
namespace {

std::vector<LayoutConfig> shapes_of(const CacheConfig& config) {
  std::vector<LayoutConfig> shapes;
  for (std::size_t i = 0; i < config.kv_group_count(); ++i) {
    shapes.push_back(config.shape_of(static_cast<KvGroupNumber>(i)));
  }
  return shapes;
}

// A block of a window or a state serves a match that ends at its key, so it depends on the full
// block of that key.
void set_parents(const CacheConfig& config, BlockStore::Options& options) {
  using Parent = BlockStore::Options::Parent;
  const auto& groups = config.kv_groups;
  const auto full = std::ranges::find(groups, KvGroupKind::full, &KvGroupConfig::kind);
  // A key inside a larger full block has no full block of its own.
  const bool each_key = full != groups.end() && full->shape.page_size == config.block_tokens;
  if (each_key) options.full_group = static_cast<KvGroupNumber>(full - groups.begin());
  for (const KvGroupConfig& group : groups) {
    options.block_bytes.push_back(block_bytes(group.shape));
    options.parents.push_back(group.kind == KvGroupKind::full ? Parent::chained
                              : each_key                      ? Parent::full_block
                                                              : Parent::none);
  }
}

BlockStore::Options store_options(CacheServices& services, const CacheCore::Parts& parts,
                                  const SlotContents* disk_slots) {
  BlockStore::Options options{.offload_on_evict = parts.config.offload == OffloadMode::on_evict,
                              .hash_seed = parts.hash_seed,
                              .events = {&services.events, parts.number},
                              .eviction = parts.config.eviction,
                              .history_bytes = services.options.max_history_bytes,
                              .disk_slots = disk_slots};
  for (std::size_t i = 0; i < kNumTiers; ++i) {
    if (!parts.config.tiers[i]) continue;
    options.capacities[i] = slots_in(parts.config, kTiers[i]);
    options.sizes[i] = slot_sizes(parts.config, kTiers[i]);
  }
  options.policy_blocks = policy_blocks(parts.config);
  set_parents(parts.config, options);
  return options;
}

std::array<std::unique_ptr<TierSpace>, kNumTiers> make_spaces(CacheServices& services,
                                                              CacheCore::Parts& parts) {
  std::array<std::unique_ptr<TierSpace>, kNumTiers> spaces;
  for (Tier tier : kTiers) {
    auto& layout = parts.layouts[index_of(tier)];
    if (!layout) continue;
    std::vector<PreparedMemory> prepared;
    if (tier == Tier::pinned) prepared = std::move(parts.prepared);
    // The owner of imported memory populates it.
    const bool populated = tier == Tier::pinned && services.options.populate_threads > 0 &&
                           !parts.config.tiers[index_of(tier)]->import;
    spaces[index_of(tier)] = std::make_unique<TierSpace>(
        std::move(*layout),
        parts.config.kv_groups.empty() ? std::vector<LayoutConfig>() : shapes_of(parts.config),
        std::move(prepared), populated ? &services.populator : nullptr);
  }
  return spaces;
}

RecordedCache recorded(const CacheServices& services, const CacheConfig& config) {
  RequestRecord* const record = services.record.get();
  if (record == nullptr) return {};
  const auto page_size = static_cast<std::uint32_t>(config.tokens_per_key());
  return {.record = record, .source = record->open(config.name, page_size)};
}

// Under one hold of the lock: blocks that learn whether their prefix is still present, and keys
// that expire. Each takes up to 200 ns; an expired key also updates some blocks that follow it.
constexpr std::uint32_t kChainStep = 256;
constexpr std::uint32_t kExpireStep = 64;

bool on_disk(const BlockLayout& layout) { return layout.storage_kind() == StorageKind::disk; }

}  // namespace

CacheState::CacheState(const CacheConfig& config, const BlockManagerOptions& options,
                       const BlockStore::Options& store_options, LeaseTable::Options lease_options)
    : store(store_options),
      leases(lease_options),
      steps(options.lock_step),
      pressure(config, options) {
  for (std::size_t i = 0; i < kNumTiers; ++i) {
    mapped[i] = config.tiers[i] && config.tiers[i]->import;
  }
}

Error key_exists(const BlockKey& key) {
  return {ErrorCode::exists,
          "key " + to_hex(key.view().bytes()) + " already exists, and if_exists is error"};
}

CacheCore::CacheCore(std::shared_ptr<CacheServices> shared, Parts parts)
    : services(std::move(shared)),
      config(parts.config),
      number(parts.number),
      memory_id(parts.memory_id),
      block_bytes(cairn::block_bytes(parts.config.shape)),
      has_shards(std::ranges::any_of(shapes_of(config),
                                     [](const LayoutConfig& shape) { return shape.shards > 0; })),
      imported(std::move(parts.imported)),
      spaces(make_spaces(*services, parts)),
      slot_contents(std::move(parts.slot_contents)),
      disk_codec(std::move(parts.disk_codec)),
      disk_files(std::move(parts.disk_files)),
      journal(std::move(parts.journal)),
      staging(services->runtime, services->staging, shapes_of(parts.config)),
      settings(parts.config),
      reuse({.eviction = config.eviction, .capacity_blocks = different_blocks(config)},
            recorded(*services, config)),
      state_(config, options(), store_options(*services, parts, slot_contents.get()),
             {.cache = number, .max_leases = options().max_leases}) {
  services->events.open(number, config.name);
}

Result<> CacheCore::check_tier(Tier tier) const {
  if (spaces[index_of(tier)]) return {};
  return Error{ErrorCode::unknown_tier,
               "cache " + config.name + " has no tier " + std::string(to_string(tier))};
}

Result<> CacheCore::check_kv_group(KvGroupNumber kv_group) const {
  if (kv_group < config.kv_group_count()) return {};
  return Error{ErrorCode::unknown_kv_group,
               "cache " + config.name + " has no KV group " + std::to_string(kv_group)};
}

Result<> CacheCore::check_metadata(std::size_t size_bytes) const {
  const std::size_t most = options().max_metadata_bytes;
  if (size_bytes <= most) return {};
  return Error{ErrorCode::body_too_large, "the metadata is " + std::to_string(size_bytes) +
                                              " bytes; it takes at most " + std::to_string(most)};
}

Result<> CacheCore::check_count(std::size_t keys) const {
  const std::size_t most = options().max_blocks_per_request;
  if (keys <= most) return {};
  return Error{ErrorCode::out_of_range,
               std::to_string(keys) + " keys, not up to " + std::to_string(most)};
}

Result<> CacheCore::check_quota(const BlockQuota* quota, Tier tier, std::uint64_t more) const {
  if (quota == nullptr || more == 0 || quota->fits(tier, more)) return {};
  return Error{ErrorCode::no_capacity, "the quota of tier " + std::string(to_string(tier)) +
                                           " is " + std::to_string(quota->limit(tier)) +
                                           " blocks, of which " +
                                           std::to_string(quota->used(tier)) + " are in use"};
}

Result<std::uint32_t> CacheCore::lease_duration_ms(std::optional<std::uint32_t> wanted) const {
  // The server's limit may have been lowered since the cache was made.
  const std::uint32_t ms =
      wanted.value_or(std::min(settings->default_lease_ms, options().max_lease_ms));
  if (ms >= 1 && ms <= options().max_lease_ms) return ms;
  return Error{ErrorCode::out_of_range, "lease_ms is " + std::to_string(ms) + ", not 1 to " +
                                            std::to_string(options().max_lease_ms)};
}

Result<TransferId> CacheCore::open_transfer(std::uint64_t blocks_total) {
  return services->transfers.open(
      {.owner = weak_from_this(), .cache = config.name, .blocks_total = blocks_total});
}

void CacheCore::submit(TransferJob job, UniqueFunction<void(JobOutcome)> ended,
                       UniqueFunction<void(JobId)> accepted) {
  services->jobs.enter();
  if (on_disk(*job.source) || on_disk(*job.destination)) {
    job.slots = slot_contents.get();
    job.codec = disk_codec.get();
  }
  const auto pairs = static_cast<std::uint32_t>(job.pairs.size());
  auto end = std::make_shared<UniqueFunction<void(JobOutcome)>>(std::move(ended));
  job.on_complete = [self = shared_from_this(), end](JobOutcome outcome) {
    (*end)(std::move(outcome));
    *end = {};  // release pins and staging before reporting the end
    self->services->jobs.leave();
  };
  auto submitted = services->scheduler.submit(std::move(job));
  if (submitted) {
    if (accepted) accepted(*submitted);
    return;
  }
  JobOutcome refused;
  refused.state = JobState::failed;
  for (std::uint32_t i = 0; i < pairs; ++i) refused.failures.push_back({i, submitted.error()});
  (*end)(std::move(refused));
  *end = {};
  services->jobs.leave();
}

CacheLock::CacheLock(CacheCore& core, LockUse use) : core_(core), state_(core.state_), use_(use) {
  core_.mutex_.lock();
  enter();
}

CacheLock::~CacheLock() {
  leave();
  // The caller that queued the waiters finishes serving them.
  while (goes_on_) {
    core_.mutex_.yield();
    enter();
    leave();
  }
  core_.mutex_.unlock();
  for (auto& action : actions_) guarded("cache", action);
}

void CacheLock::yield() {
  leave();
  core_.mutex_.yield();
  enter();
}

void CacheLock::aside(const std::function<void()>& work) {
  struct Back {
    ~Back() CAIRN_THREAD_ATTRIBUTE(no_thread_safety_analysis) {
      locked.core_.mutex_.lock();
      locked.enter();
    }
    CacheLock& locked;
  };
  leave();
  core_.mutex_.unlock();
  const Back back{*this};
  work();
}

void CacheLock::enter() {
  budget_ = state_.steps.size();
  now_ = core_.services->clock.now();
  unix_ms_ = core_.services->clock.unix_ms();
  state_.store.set_time(unix_ms_, now_);
  state_.store.follow_lru(core_.reuse.follows_lru());
}

void CacheLock::leave() {
  // An exception here must not end the process. The next hold of the lock then serves the requests
  // that wait for slots. An answer that was not given reports that itself when destroyed.
  const bool served = guarded("cache", [this] {
    state_.leases.release_step(*this);
    state_.pins.settle(*this);
    if (std::exchange(goes_on_, false)) serve_again_ = true;
    if (!state_.store.settle_chains(kChainStep)) go_on();
    serve_all();
    if (state_.dropped) return;
    state_.pressure.look(*this);
    state_.sizes.go_on(*this);
    serve_all();
    state_.holes.go_on(*this);
  });
  if (!served) state_.store.say_freed();
  state_.steps.ended(
      {.used_up = step_is_over(), .gained = state_.slots.taken() + state_.store.evictions()});
  const auto held = core_.services->clock.now() - now_;
  state_.lock_holds.record(use_,
                           static_cast<std::uint64_t>(
                               std::chrono::duration_cast<std::chrono::nanoseconds>(held).count()));
}

void CacheLock::serve_all() {
  while (true) {
    if (goes_on_) return;
    const bool freed = state_.store.take_freed();
    if (!std::exchange(serve_again_, false) && !freed) return;
    for (Tier tier : kTiers) state_.slots.serve(*this, tier);
  }
}

bool CacheLock::spend(std::uint32_t cost) {
  if (budget_ < cost) {
    budget_ = 0;
    return false;
  }
  budget_ -= cost;
  return true;
}

Result<> CacheLock::check_usable() const {
  if (!state_.dropped) return {};
  return Error{ErrorCode::unknown_cache, "cache " + core_.config.name + " has been removed"};
}

void CacheLock::expire_keys() {
  while (!state_.store.expire(now_, kExpireStep)) {
    yield();
    if (state_.dropped) return;
  }
}

void CacheLock::shut() {
  state_.dropped = true;
  state_.leases.end_all(*this);
  state_.pins.end_all(*this);
  const Error gone{ErrorCode::unknown_cache, "cache " + core_.config.name + " has been removed"};
  for (Tier tier : kTiers) state_.slots.cancel_all(*this, tier, gone);
  state_.transfers.cancel_all(*this);
  state_.leases.finish_releases(*this);
  state_.store.stop_events();
  core_.services->events.close(core_.number, unix_ms_);
}

}  // namespace cairn
