#pragma once

// Inside of the module: a cache's parts, its lock, and what the lock guards. The jobs of the
// transfer engine hold a core too, so it outlives the cache's removal until the last byte has
// moved.
//
// What the lock guards is CacheState, and a Section is the only way to it. Each member of the state
// has its own private state and one job; its calls take the section, and find the others through
// it:
//
//   store      which keys are present, in which slots, who is evicted next   (index/block_store)
//   leases     who holds which blocks until when                             (leases)
//   sessions   which blocks a conversation has used                          (sessions)
//   writes     what is written into uncommitted blocks                       (block_writes)
//   slots      slots for those who ask                                       (slot_queue)
//   moves      copies between tiers                                          (movements)
//   departures blocks that leave the cache, and who wants them before        (departures)
//   pressure   watermarks                                                    (pressure_watch)
//   sizes      a tier on its way to another size                             (resizing)
//   scrub      bytes on disk that nobody reads                               (scrub)
//
// Beside the lock a ReuseWatch follows what is asked for. The verbs of Cache are in cache_*.cpp,
// block_reader.cpp and block_writer.cpp.

#include <array>
#include <filesystem>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/mutex.hpp"
#include "blockmgr/cache/block_headers.hpp"
#include "blockmgr/cache/block_writes.hpp"
#include "blockmgr/cache/cache.hpp"
#include "blockmgr/cache/cache_services.hpp"
#include "blockmgr/cache/canonical_staging.hpp"
#include "blockmgr/cache/departures.hpp"
#include "blockmgr/cache/leases.hpp"
#include "blockmgr/cache/movements.hpp"
#include "blockmgr/cache/pressure_watch.hpp"
#include "blockmgr/cache/resizing.hpp"
#include "blockmgr/cache/reuse_watch.hpp"
#include "blockmgr/cache/scrub.hpp"
#include "blockmgr/cache/sessions.hpp"
#include "blockmgr/cache/slot_queue.hpp"
#include "blockmgr/cache/step_budget.hpp"
#include "blockmgr/cache/tier_space.hpp"
#include "blockmgr/cache/versions.hpp"
#include "blockmgr/disk/slot_journal.hpp"
#include "blockmgr/index/block_store.hpp"

namespace cairn {

// What matches and commits have found, since the cache was made.
struct CacheCounts {
  std::array<std::uint64_t, kNumTiers> hits{};
  std::uint64_t matches = 0;
  std::uint64_t shared_hits = 0;
  std::uint64_t misses = 0;
  std::uint64_t commits = 0;
  std::uint64_t duplicates = 0;
  std::array<std::uint64_t, kHintKinds> hints{};  // by ReuseHint::Kind
  void count(const ReuseHint& hint) { ++hints[static_cast<std::size_t>(hint.kind)]; }
};

struct CacheState {
  CacheState(const CacheConfig& config, const BlockManagerOptions& options,
             const BlockStore::Options& store_options, LeaseTable::Options lease_options);

  bool dropped = false;
  std::array<bool, kNumTiers> mapped{};  // other processes map the tier, or once did
  BlockStore store;
  std::uint64_t reading = 0;  // blocks that requests for many hold
  Leases leases;
  Sessions sessions;
  BlockWrites writes;
  SlotQueue slots;
  StepBudget steps;
  Movements moves;
  Departures departures;
  PressureWatch pressure;
  Resizing sizes;
  Scrub scrub;
  CacheCounts counts;
  LockHolds lock_holds;
};

// `exists`: of a block that was to be stored only if it is new.
Error key_exists(const BlockKey& key);

class CacheCore final : public std::enable_shared_from_this<CacheCore> {
 public:
  struct Parts {
    CacheConfig config;
    std::uint32_t number = 0;
    std::array<std::optional<BlockLayout>, kNumTiers> layouts = {};
    std::unique_ptr<SlotChecksums> slot_checksums = {};  // of a disk tier
    std::unique_ptr<SlotJournal> journal = {};           // the same
    std::vector<PreparedMemory> prepared = {};           // of the pinned tier
    std::vector<MemoryQuotaShare> imported = {};         // of the tiers in engines' memory
    std::vector<std::filesystem::path> disk_files = {};
    std::uint64_t hash_seed = 0;
    std::uint64_t memory_id = 0;
  };
  CacheCore(std::shared_ptr<CacheServices> services, Parts parts);

  const std::shared_ptr<CacheServices> services;
  const CacheConfig config;  // as it was made: see `settings`
  const std::uint32_t number;
  const std::uint64_t memory_id;  // random: no other cache's, of this server or the one before
  const std::uint64_t block_bytes;
  const std::vector<MemoryQuotaShare> imported;  // of the tiers in engines' memory
  const std::array<std::unique_ptr<TierSpace>, kNumTiers> spaces;  // null: no such tier
  const std::unique_ptr<SlotChecksums> slot_checksums;             // null without a disk tier
  const std::vector<std::filesystem::path> disk_files;             // of its slots
  const std::unique_ptr<SlotJournal> journal;  // null without a disk tier; its notes under the lock
  CanonicalStaging staging;
  // What `config` is by now: offload, default_lease_ms, pressure and the tiers' sizes may change.
  Versions<CacheConfig> settings;
  Mutex checkpointing;  // one checkpoint at a time; taken before the lock
  ReuseWatch reuse;

  const BlockLayout& layout(Tier tier) const { return spaces[index_of(tier)]->layout(); }
  const BlockManagerOptions& options() const { return services->options; }

  // --- errors that many verbs share, without the lock
  Result<> check_tier(Tier tier) const;                   // unknown_tier
  Result<> check_metadata(std::size_t size_bytes) const;  // body_too_large
  Result<> check_count(std::size_t keys) const;           // out_of_range
  // no_capacity where so many more would be over it; null: none.
  Result<> check_quota(const BlockQuota* quota, Tier tier, std::uint64_t more) const;
  Result<std::uint32_t> lease_duration_ms(std::optional<std::uint32_t> wanted) const;

  // Submits a job whose end is counted; where the engine refuses it, it has failed for all pairs.
  void submit(TransferJob job, UniqueFunction<void(JobOutcome)> ended,
              UniqueFunction<void(JobId)> accepted);
  // Makes what is known of the disk tier durable. Blocks; takes the lock for a part at a time.
  Result<> checkpoint();

 private:
  friend class Section;
  void keep_learnt();

  YieldingMutex mutex_;
  CacheState state_ CAIRN_GUARDED_BY(mutex_);
};

// Holds a cache's lock, and is the way to what it guards. What must not happen under it (answers,
// jobs, callbacks) is collected and runs when this is destroyed, after those who wait for slots
// were served.
class CAIRN_THREAD_ATTRIBUTE(scoped_lockable) Section {
 public:
  Section(CacheCore& core, LockUse use) CAIRN_THREAD_ATTRIBUTE(acquire_capability(core.mutex_));
  ~Section() CAIRN_THREAD_ATTRIBUTE(release_capability());
  Section(const Section&) = delete;
  Section& operator=(const Section&) = delete;

  CacheState* operator->() { return &state_; }
  CacheCore& core() { return core_; }
  CacheServices& services() { return *core_.services; }

  Result<> check_usable() const;  // unknown_cache once removed
  // Lets others have the lock, so that no request holds it for longer than a step. Afterwards
  // anything may have changed, but for what is pinned: who goes on asks check_usable() again.
  void give_way() CAIRN_THREAD_ATTRIBUTE(no_thread_safety_analysis);
  // The same, with work of the caller's own while others have it.
  void aside(const std::function<void()>& work) CAIRN_THREAD_ATTRIBUTE(no_thread_safety_analysis);
  void after(UniqueFunction<void()> action) { actions_.push_back(std::move(action)); }
  // Slots taken and copies evicted under one hold of the lock have a bound, the same whoever they
  // are for: false where it is reached. Who has more to do then says go_on(), and is called again
  // after others had the lock.
  bool spend(std::uint32_t cost);
  bool step_is_over() const { return budget_ == 0; }
  void go_on() { goes_on_ = true; }
  // Those who wait for slots are served once more: something that they count on has changed.
  void serve_again() { serve_again_ = true; }
  TimePoint now() const { return now_; }
  std::int64_t unix_ms() const { return unix_ms_; }
  // When something that lasts so long from now ends, for people.
  std::int64_t unix_ms_at(TimePoint end) const {
    return unix_ms_ + std::chrono::duration_cast<std::chrono::milliseconds>(end - now_).count();
  }
  // Drops all keys whose time is over. Gives way.
  void expire_keys() CAIRN_THREAD_ATTRIBUTE(no_thread_safety_analysis);
  // Removes the cache: its leases end, its movements are cancelled, nothing of it is told any more.
  // Gives way; of two that remove it the second finds it removed.
  void shut();

 private:
  void enter();
  void leave();  // but for the lock
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

// Says of all blocks of a conversation what is expected of them. Gives way.
HintResult tell_session(Section& section, const Sessions::Name& name, NextUse next_use);

}  // namespace cairn
