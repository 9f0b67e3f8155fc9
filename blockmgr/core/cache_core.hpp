#pragma once

// Internal header: a cache's parts, its lock, and the state that the lock guards. Jobs of the
// transfer scheduler hold the core too, so it outlives the removal of the cache until the last byte
// has moved.
//
// The lock guards CacheState, which only a CacheLock can access. Each member of the state has its
// own private state and one job. Its calls take the CacheLock, and reach the other members
// through it:
//
//   store      which keys are present, in which slots; what is evicted next  (index/block_store)
//   leases     which lease holds which blocks, and until when                (leases)
//   pins       which blocks stay until when, because clients want it         (pins)
//   sessions   which blocks a conversation has used                          (sessions)
//   writes     what is written into uncommitted blocks                       (block_writes)
//   partials   blocks that lack some of their parts                          (partial_blocks)
//   slots      the queue of requests for slots                               (slot_queue)
//   transfers  copies between tiers                                          (transfers)
//   evict_to_remote  evicted blocks that a taker gets first                  (evict_to_remote)
//   pressure   watermarks                                                    (pressure_watch)
//   sizes      tiers that are changing size                                  (resizing)
//   scrub      checks of bytes on disk that nobody reads                     (scrub)
//   holes      pages of free disk slots that others need                     (hole_punch)
//
// Outside the lock, a ReuseWatch follows the requests. The verbs in blockmgr/cache use
// all of this.

#include <array>
#include <filesystem>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/mutex.hpp"
#include "blockmgr/core/block_headers.hpp"
#include "blockmgr/core/block_writes.hpp"
#include "blockmgr/core/cache_services.hpp"
#include "blockmgr/core/evict_to_remote.hpp"
#include "blockmgr/core/hole_punch.hpp"
#include "blockmgr/core/leases.hpp"
#include "blockmgr/core/partial_blocks.hpp"
#include "blockmgr/core/pins.hpp"
#include "blockmgr/core/pressure_watch.hpp"
#include "blockmgr/core/resizing.hpp"
#include "blockmgr/core/scrub.hpp"
#include "blockmgr/core/slot_queue.hpp"
#include "blockmgr/core/step_budget.hpp"
#include "blockmgr/core/tier_space.hpp"
#include "blockmgr/core/transfers.hpp"
#include "blockmgr/core/versions.hpp"
#include "blockmgr/disk/slot_journal.hpp"
#include "blockmgr/index/block_store.hpp"
#include "blockmgr/reuse/reuse_watch.hpp"
#include "blockmgr/reuse/sessions.hpp"
#include "blockmgr/transfer/canonical_staging.hpp"

namespace cairn {

// Counts of matches and commits since the cache was made.
struct CacheCounts {
  std::array<std::uint64_t, kNumTiers> hits{};
  std::uint64_t matches = 0;
  std::uint64_t remote_hits = 0;
  std::uint64_t misses = 0;
  std::uint64_t commits = 0;
  std::uint64_t duplicates = 0;
  std::array<std::uint64_t, kHintKinds> hints{};  // by ReuseHint::Kind
  ActionCounts actions{};
  void count(const ReuseHint& hint) { ++hints[static_cast<std::size_t>(hint.kind)]; }
};

// Error `exists`: the block was to be stored only if its key is new.
Error key_exists(const BlockKey& key);

struct CacheState {
  CacheState(const CacheConfig& config, const BlockManagerOptions& options,
             const BlockStore::Options& store_options, LeaseTable::Options lease_options);

  bool dropped = false;
  std::array<bool, kNumTiers> mapped{};  // other processes map the tier, or have mapped it
  std::array<std::uint64_t, kNumTiers> size_changes{};  // since the cache was made or restored
  BlockStore store;
  std::uint64_t reading = 0;  // blocks pinned by read_prefix() and lend()
  Leases leases;
  Pins pins;
  Sessions sessions;
  BlockWrites writes;
  PartialBlocks partials;
  SlotQueue slots;
  StepBudget steps;
  Transfers transfers;
  EvictToRemote evict_to_remote;
  PressureWatch pressure;
  Resizing sizes;
  Scrub scrub;
  HolePunch holes;
  CacheCounts counts;
  LockHolds lock_holds;
};

class CacheCore final : public std::enable_shared_from_this<CacheCore> {
 public:
  struct Parts {
    CacheConfig config;
    std::uint32_t number = 0;
    std::array<std::optional<BlockLayout>, kNumTiers> layouts = {};
    std::unique_ptr<SlotContents> slot_contents = {};  // null without a disk tier
    std::unique_ptr<MediumCodec> disk_codec = {};      // likewise
    std::unique_ptr<SlotJournal> journal = {};         // null without a disk tier
    std::vector<PreparedMemory> prepared = {};         // of the pinned tier
    std::vector<MemoryQuotaShare> imported = {};       // of the tiers in engines' memory
    std::vector<std::filesystem::path> disk_files = {};
    std::uint64_t hash_seed = 0;
    std::uint64_t memory_id = 0;
  };
  CacheCore(std::shared_ptr<CacheServices> services, Parts parts);

  const std::shared_ptr<CacheServices> services;
  const CacheConfig config;  // as created; see `settings`
  const std::uint32_t number;
  const std::uint64_t memory_id;                 // random: unique across caches and restarts
  const std::uint64_t block_bytes;               // of the largest block
  const bool has_shards;                         // of any group's blocks
  const std::vector<MemoryQuotaShare> imported;  // of the tiers in engines' memory
  const std::array<std::unique_ptr<TierSpace>, kNumTiers> spaces;  // null: no such tier
  const std::unique_ptr<SlotContents> slot_contents;               // null without a disk tier
  const std::unique_ptr<MediumCodec> disk_codec;                   // likewise
  const std::vector<std::filesystem::path> disk_files;             // of its slots
  const std::unique_ptr<SlotJournal> journal;  // null without disk; write notes under the lock
  CanonicalStaging staging;
  // The current configuration. offload, default_lease_ms, pressure, eviction and tier sizes may
  // differ from `config`.
  Versions<CacheConfig> settings;
  Mutex checkpointing;  // one checkpoint at a time; lock it before mutex_
  ReuseWatch reuse;

  // The tier's slots, each of the size of the largest block.
  const BlockLayout& slots(Tier tier) const { return spaces[index_of(tier)]->slots(); }
  // The same slots as blocks of a KV group.
  const BlockLayout& layout(Tier tier, KvGroupNumber kv_group) const {
    return spaces[index_of(tier)]->layout(kv_group);
  }
  const LayoutConfig& shape(KvGroupNumber kv_group) const { return config.shape_of(kv_group); }
  const BlockManagerOptions& options() const { return services->options; }

  // --- errors that many methods share; call without the lock
  Result<> check_tier(Tier tier) const;                   // unknown_tier
  Result<> check_kv_group(KvGroupNumber kv_group) const;  // unknown_kv_group
  Result<> check_metadata(std::size_t size_bytes) const;  // body_too_large
  Result<> check_count(std::size_t keys) const;           // out_of_range
  // no_capacity if `more` blocks would exceed it; null: no quota.
  Result<> check_quota(const BlockQuota* quota, Tier tier, std::uint64_t more) const;
  Result<std::uint32_t> lease_duration_ms(std::optional<std::uint32_t> wanted) const;

  // Opens a transfer of this cache for clients to follow. Error: queue_full.
  Result<TransferId> open_transfer(std::uint64_t blocks_total);
  // Submits a job. If the scheduler refuses it, `ended` runs at once with a failure for each pair.
  // `accepted` runs only if the scheduler takes the job.
  void submit(TransferJob job, UniqueFunction<void(JobOutcome)> ended,
              UniqueFunction<void(JobId)> accepted);

 private:
  friend class CacheLock;

  YieldingMutex mutex_;
  CacheState state_ CAIRN_GUARDED_BY(mutex_);
};

// Holds a cache's lock and gives access to the state that it guards. Answers, jobs and callbacks
// must not run under the lock: after() collects them. The destructor first serves the requests that
// wait for slots, then unlocks and runs the collected actions.
class CAIRN_THREAD_ATTRIBUTE(scoped_lockable) CacheLock {
 public:
  CacheLock(CacheCore& core, LockUse use) CAIRN_THREAD_ATTRIBUTE(acquire_capability(core.mutex_));
  ~CacheLock() CAIRN_THREAD_ATTRIBUTE(release_capability());
  CacheLock(const CacheLock&) = delete;
  CacheLock& operator=(const CacheLock&) = delete;

  CacheState* operator->() { return &state_; }
  CacheCore& core() { return core_; }
  CacheServices& services() { return *core_.services; }

  Result<> check_usable() const;  // unknown_cache once removed
  // Releases the lock to waiting threads and takes it again, so that no request holds it for longer
  // than a step. Anything that is not pinned may have changed. The cache may have been removed:
  // call check_usable() again.
  void yield() CAIRN_THREAD_ATTRIBUTE(no_thread_safety_analysis);
  // Runs `work` with the lock released.
  void aside(const std::function<void()>& work) CAIRN_THREAD_ATTRIBUTE(no_thread_safety_analysis);
  void after(UniqueFunction<void()> action) { actions_.push_back(std::move(action)); }
  // Charges `cost` to the limit on slots taken and copies evicted under one hold of the lock.
  // Returns false if the limit is reached. The caller then calls go_on() and is called again after
  // other threads had the lock.
  bool spend(std::uint32_t cost);
  bool step_is_over() const { return budget_ == 0; }
  void go_on() { goes_on_ = true; }
  // Serves the waiting slot requests once more, because something that they depend on has changed.
  void serve_again() { serve_again_ = true; }
  TimePoint now() const { return now_; }
  std::int64_t unix_ms() const { return unix_ms_; }
  // Converts a time point to Unix ms, for display.
  std::int64_t unix_ms_at(TimePoint end) const {
    return unix_ms_ + std::chrono::duration_cast<std::chrono::milliseconds>(end - now_).count();
  }
  // Drops all expired keys. Yields the lock.
  void expire_keys() CAIRN_THREAD_ATTRIBUTE(no_thread_safety_analysis);
  // Removes the cache: ends its leases, cancels its transfers and stops its events. Yields; of
  // two calls, the second finds the cache removed.
  void shut();

 private:
  void enter();
  void leave();  // without unlocking
  void serve_all();

  CacheCore& core_;
  CacheState& state_;
  const LockUse use_;
  TimePoint now_;  // when the lock was taken
  std::int64_t unix_ms_;
  std::uint32_t budget_ = 0;
  bool goes_on_ = false;
  bool serve_again_ = false;
  std::vector<UniqueFunction<void()>> actions_;
};

}  // namespace cairn
