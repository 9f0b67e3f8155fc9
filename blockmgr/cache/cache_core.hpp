#pragma once

// Inside of the module: what a Cache, its readers and writers, its movements and the BlockManager
// share. The jobs of the transfer engine hold it too, so it outlives the cache's removal until the
// last byte has moved.
//
//   cache_core.cpp     making one, removing it; leases' ends; pressure
//   cache_slots.cpp    slots for those who ask: free ones, evicted ones, waiting for them
//   cache_moves.cpp    batches of copies between tiers
//   cache_resize.cpp   other settings and sizes while it is used
//   cache_offload.cpp  which blocks go down without being asked for: offload, write-through
//   cache_*.cpp        the operations of Cache

#include <algorithm>
#include <array>
#include <deque>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/log.hpp"
#include "base/mutex.hpp"
#include "blockmgr/cache/arrivals.hpp"
#include "blockmgr/cache/byte_budget.hpp"
#include "blockmgr/cache/cache.hpp"
#include "blockmgr/cache/canonical_staging.hpp"
#include "blockmgr/cache/job_gate.hpp"
#include "blockmgr/cache/piece_progress.hpp"
#include "blockmgr/cache/tier_space.hpp"
#include "blockmgr/cache/transfer_table.hpp"
#include "blockmgr/cache/versions.hpp"
#include "blockmgr/index/block_store.hpp"
#include "blockmgr/index/event_ring.hpp"
#include "blockmgr/index/lease_table.hpp"
#include "blockmgr/index/pressure.hpp"
#include "transport/engine/transfer_engine.hpp"

namespace cairn {

// What the caches of a manager share. The references outlive the manager; the rest lives as long
// as anybody holds it.
struct CacheServices {
  CacheServices(DeviceRuntime& r, TransferEngine& e, const Clock& c, Logger& l,
                BlockManagerOptions o)
      : runtime(r),
        engine(e),
        clock(c),
        log(l),
        options(std::move(o)),
        staging(r, {.limit_bytes = options.staging_bytes,
                    .least_slot_bytes = kLeastStagingSlotBytes,
                    .least_lent = kLeastStagedBlocks}),
        transfers({.max_open = options.max_transfers,
                   .max_kept = options.kept_transfers,
                   .first_id = first_id(c)}),
        disk_writes(options.disk.write_bytes_per_s),
        disk_scrubs(options.disk.scrub_bytes_per_s),
        events({.capacity = options.kept_events, .first_id = first_id(c)}) {}

  // Each is an allocation of the runtime's, and costs it as much as a few copies of that size.
  static constexpr std::uint64_t kLeastStagingSlotBytes = 256ull << 10;
  // However large a block is: a client that is slow to take one must not stop all others.
  static constexpr std::uint32_t kLeastStagedBlocks = 2;

  DeviceRuntime& runtime;
  TransferEngine& engine;
  const Clock& clock;
  Logger& log;
  const BlockManagerOptions options;
  PinnedPool staging;
  TransferTable transfers;
  ByteBudget disk_writes;
  ByteBudget disk_scrubs;
  EventRing events;
  JobGate jobs;

 private:
  // A life of the server begins at least a second after the one before it, and has fewer than a
  // million events in a second of its life on the average. Fits the numbers of JavaScript.
  static std::uint64_t first_id(const Clock& clock) {
    return static_cast<std::uint64_t>(clock.unix_ms() / 1000) << 20;
  }
};

class Section;

struct KeyOrder {
  bool operator()(const BlockKey& a, const BlockKey& b) const {
    return std::ranges::lexicographical_compare(a.view().bytes(), b.view().bytes());
  }
};

// True where the error of a copy says that the source's bytes are not what they should be: a disk
// tier is only ever read as a source, and a device's error while it is one is its own.
bool accuses_source(Tier source, ErrorCode code);

// Somebody who asked for slots of a tier.
struct SlotRequest {
  std::uint64_t id = 0;
  std::uint32_t count = 0;
  std::uint8_t priority = 50;
  // Runs under the lock with `count` allocated slots, each with one pin that it takes over, or with
  // the reason why not.
  UniqueFunction<void(Section&, Result<std::span<const SlotRef>>)> granted = {};
};

// A batch of copies to one tier. Every source and destination is pinned until its copy has ended.
struct Move {
  enum class Purpose : std::uint8_t {
    offload,        // the sources are leaving their tier
    transfer,       // a client asked
    write_through,  // best effort
  };
  struct Item {
    SlotRef source;
    SlotRef destination;
    bool ended = false;  // it arrived, or did not
  };
  std::uint64_t number = 0;  // of CacheCore::background
  TimePoint began{};         // the same
  Purpose purpose = Purpose::transfer;
  Tier to = Tier::device;
  std::int32_t priority = 0;
  bool drop_source = false;                          // transfer
  EvictionReason reason = EvictionReason::capacity;  // offload
  std::optional<TransferId> transfer;
  std::optional<LeaseId> lease;  // holds the new copies too, while it lives
  std::vector<Item> items;       // by source tier
  std::vector<BlockKey> keys;    // transfer: of the items
  std::uint64_t following = 0;   // transfer: keys that others are bringing
  // transfer: how many of its keys others wait for, by their priority.
  std::map<std::int32_t, std::uint64_t> followed;
  // transfer: copies that are there already. Pinned until the end, so that making room for the rest
  // does not take them away.
  std::vector<SlotRef> kept;
  bool asking = false;               // for slots, at this moment
  std::uint64_t request = 0;         // of the slots, while it waits for them
  std::size_t next = 0;              // the first item not yet handed to the engine
  std::uint32_t jobs = 0;            // under way
  std::map<std::size_t, JobId> ids;  // of the jobs under way, by first item
  std::set<std::size_t> ended_jobs;  // by first item
  bool cancelled = false;
  bool over = false;  // finished: what its end sets off may come back to it
  std::uint64_t failed = 0;
  std::uint64_t skipped = 0;    // cancelled items
  std::uint64_t left = 0;       // sources that left their tier
  std::uint64_t offloaded = 0;  // of those, the ones that are in the lower tier now
  UniqueFunction<void(Section&, const Move&)> ended;  // under the lock; may be empty

  bool finished(std::size_t first) const { return ended_jobs.contains(first); }
  // Its own priority, or a higher one of somebody who waits for it.
  std::int32_t urgency() const {
    return followed.empty() ? priority : std::max(priority, followed.rbegin()->first);
  }
  bool ended_all() const {
    return request == 0 && jobs == 0 && next == items.size() && following == 0;
  }
};

// Why a key that was deleted meanwhile did not arrive.
Error key_vanished();

class CacheCore final : public std::enable_shared_from_this<CacheCore> {
 public:
  struct Parts {
    CacheConfig config;
    std::uint32_t number = 0;
    std::array<std::optional<BlockLayout>, kNumTiers> layouts = {};
    std::unique_ptr<DiskSlots> disk_slots = {};  // of a disk tier
    std::unique_ptr<SlotJournal> journal = {};   // the same
    std::vector<PreparedMemory> prepared = {};   // of the pinned tier
    std::vector<std::filesystem::path> disk_files = {};
    std::uint64_t hash_seed = 0;
  };
  CacheCore(std::shared_ptr<CacheServices> services, Parts parts);

  const std::shared_ptr<CacheServices> services;
  const CacheConfig config;  // as it was made: see `settings`
  const std::uint32_t number;
  const std::uint64_t block_bytes;
  const std::array<std::unique_ptr<TierSpace>, kNumTiers> spaces;  // null: no such tier
  const std::unique_ptr<DiskSlots> disk_slots;                     // null without a disk tier
  const std::vector<std::filesystem::path> disk_files;             // of its slots
  CanonicalStaging staging;
  // What `config` is by now: offload, default_lease_ms, pressure and the tiers' sizes may change.
  Versions<CacheConfig> settings;

  const BlockLayout& layout(Tier tier) const { return spaces[index_of(tier)]->layout(); }
  const BlockManagerOptions& options() const { return services->options; }

  // --- errors that many operations share
  // no_capacity where so many more would be over it; null: none.
  Result<> check_quota(const BlockQuota* quota, Tier tier, std::uint64_t more) const;
  Result<> check_tier(Tier tier) const;
  Result<> check_usable() const;                          // unknown_cache once removed
  Result<> check_metadata(std::size_t size_bytes) const;  // body_too_large
  Result<std::uint32_t> lease_duration_ms(std::optional<std::uint32_t> wanted) const;

  // --- leases
  Result<LeaseNumber> live_lease(Section& section, const LeaseId& id);
  void end_lease(Section& section, LeaseNumber number, bool expired);
  void end_overdue(Section& section);
  // The slot of an uncommitted block of that lease. unknown_tier, unknown_slot, stale_generation,
  // foreign_lease, state_conflict.
  Result<SlotRef> uncommitted(LeaseNumber lease, const BlockHandle& handle) const;
  void forget_writes(SlotRef at);
  // lease_quota where somebody's leases would hold more than they may; null: nobody's.
  static Result<> check_pins(const LeaseQuota* pins, std::uint64_t more);
  // lease_quota, too_many where leases would hold more than they may, all together.
  Result<> check_held(std::uint64_t more) const;

  // --- slots
  // An error where it cannot be granted now or later; the request is then as it was.
  Result<> request_slots(Section& section, Tier tier, SlotRequest&& request);
  void cancel_request(Section& section, Tier tier, std::uint64_t id, const Error& error);
  std::uint64_t attainable(Tier tier) const;  // slots that a new request could hope for
  void serve(Section& section, Tier tier);
  struct Reclaim {
    std::uint64_t count = 0;
    EvictionReason reason = EvictionReason::capacity;
  };
  // Evicts up to so many copies; answers how many went or began to leave.
  std::uint64_t reclaim(Section& section, Tier tier, Reclaim wanted);

  // --- moves
  // Copies leaving ones to the next lower tier and drops them; drops them at once where there is no
  // room. `ended` runs under the lock, maybe now.
  void offload(Section& section, std::vector<SlotRef> victims, EvictionReason reason,
               UniqueFunction<void(Section&, const Move&)> ended);
  // The same copies, for a transfer.
  void bring(Section& section, const std::shared_ptr<Move>& move);
  void start(Section& section, const std::shared_ptr<Move>& move);
  void cancel_move(Section& section, const std::shared_ptr<Move>& move);
  void write_through(Section& section, const std::vector<SlotRef>& committed);
  void begin_in_background(const Section& section, const std::shared_ptr<Move>& move);
  // After a move: the copies above `to` and the one in `from` go, at once or after the reads under
  // way; leased ones stay.
  void drop_moved_copies(EntryNumber key, Tier to, Tier from);
  void hold_for_lease(const Move& move, SlotRef copy);
  void finish(Section& section, const std::shared_ptr<Move>& move);
  // A key that a transfer was bringing is there or, for the `error`, is not. Without either
  // (cancelled, no slots, or gone and back) it is added to `again`, which is nobody's, for those
  // who still want it; bring() is then the caller's.
  void tell_followers(Section& section, Move& move, std::size_t index, const Error* error,
                      std::shared_ptr<Move>& again);
  // A copy whose bytes could not be read. `generation` says whose bytes those were.
  void drop_unreadable(SlotRef at, std::uint64_t generation, const Error& error);
  // What a slot of the disk tier says of its bytes once they are this block's.
  SlotLabel label_of(const Section& section, SlotRef at, const NewBlock& block) const;
  // The same for a further copy of a key; nobody's where the key went meanwhile.
  SlotLabel label_of_copy(const Section& section, SlotRef source, SlotRef destination) const;
  // Submits a job whose end is counted; where the engine refuses it, it has failed for all pairs.
  void submit(TransferJob job, UniqueFunction<void(JobOutcome)> ended,
              UniqueFunction<void(JobId)> accepted);

  // --- another size, see cache_resize.cpp
  // Takes the cache's settings and sizes, all or none; `remember` makes them durable. Waits for
  // memory, for files, and a while for blocks to move: for one thread that serves nobody else.
  Result<> change(const CacheChange& change, const Cache::Remember& remember);
  // Gives back what a tier that shrank no longer uses, where leases held it until now.
  void trim_if_due();

  // --- the disk tier's index
  // Makes what is known of the disk tier durable. Blocks; not under the lock.
  Result<> checkpoint();
  // Begins to compare the next few blocks of the disk tier with their checksums, where the rate
  // allows it and neither a movement nor the last of these is waiting.
  void scrub();

  // --- the end of a section, under the lock
  void settle(Section& section);
  void shut(Section& section);

  Mutex checkpointing;                         // one at a time; taken before `mutex`
  const std::unique_ptr<SlotJournal> journal;  // null without a disk tier; its notes under `mutex`

  mutable Mutex mutex;
  // Everything below is guarded by it.
  bool dropped = false;
  std::array<bool, kNumTiers> mapped{};  // other processes map the tier, or once did
  BlockStore store;
  LeaseTable leases;
  std::unordered_map<std::uint32_t, PieceProgress> writes;  // by SlotRef::bits
  // Keys that a commit is writing into headers on disk, and the commits that wait for its end: no
  // two headers are to name one key, and none one whose block did not stay.
  std::map<BlockKey, std::vector<UniqueFunction<void()>>, KeyOrder> labelling;
  std::array<std::deque<SlotRequest>, kNumTiers> requests;
  std::uint64_t last_request = 0;
  std::unordered_map<TransferId, std::shared_ptr<Move>> transfers;
  Arrivals arrivals;
  // Offloads and write-through that are not over, in the order in which they began.
  std::map<std::uint64_t, std::shared_ptr<Move>> background;
  std::uint64_t last_background = 0;
  std::array<std::optional<PressureGauge>, kNumTiers> gauges;
  std::array<std::optional<std::uint32_t>, kNumTiers> shrink_to;  // slots in use, while shrinking
  bool changing = false;  // its settings, sizes or memory, one at a time
  std::uint32_t changes = 0;
  struct Relocating {
    std::uint32_t under_way = 0;  // copies
    bool trim_due = false;        // what only slots beyond the end lie in is to be given back
    SlotNumber next = 0;          // where to look for the next copies beyond the end
    TimePoint not_before{};  // after a failure, so that a broken disk is not asked all the time
    std::chrono::steady_clock::time_point no_cut_before{};  // likewise, for a look at every slot
  };
  std::array<Relocating, kNumTiers> relocating;

  struct Route {
    std::array<std::uint64_t, kNumTransferOutcomes> blocks{};
    std::uint64_t bytes = 0;
    std::uint64_t in_flight_blocks = 0;
    DurationHistogram durations;
  };
  std::array<std::array<Route, kNumTiers>, kNumTiers> routes;  // [from][to]
  std::array<std::uint64_t, kNumTiers> hits{};
  std::array<std::uint64_t, kNumTiers> checksum_failures{};
  DiskAdmissionStats disk_admission;
  DiskScrubStats disk_scrub;
  DiskDamageStats disk_damage;
  SlotNumber next_scrubbed = 0;
  bool scrubbing = false;
  std::uint64_t disk_full = 0;
  std::uint64_t matches = 0;
  std::uint64_t misses = 0;
  std::uint64_t lease_expirations = 0;
  std::uint64_t commits = 0;
  std::uint64_t duplicates = 0;

 private:
  void submit_next(Section& section, const std::shared_ptr<Move>& move);
  struct Items {
    std::size_t first = 0;
    std::size_t count = 0;
    std::int32_t priority = 0;
  };
  void submit_items(const std::shared_ptr<Move>& move, Items items, std::vector<SlotLabel> labels);
  void items_ended(const std::shared_ptr<Move>& move, Items items, JobOutcome outcome);
  void arrived(Move& move, std::size_t index);
  void not_arrived(Move& move, std::size_t index, const Error* error);
  void drop_unless_leased(SlotRef at);
  struct ScrubbedSlot {
    SlotRef at;
    std::uint64_t generation = 0;
  };
  std::vector<ScrubbedSlot> take_for_scrub(const Section& section);
  void scrubbed(const std::vector<ScrubbedSlot>& slots, const JobOutcome& outcome);
  // Whether a block that leaves memory goes to disk; counted.
  bool admit(const Section& section, SlotRef at);
  std::size_t within_budget(const Section& section, std::size_t blocks);
  bool let_go(SlotRef victim, EvictionReason reason);
  void settle_pressure(Section& section);
  // Of cache_resize.cpp
  struct Relocated {
    SlotRef from;
    SlotRef to;
    std::uint64_t generation = 0;  // of `from`
    SlotLabel label = {};          // of `to`, on disk
    std::optional<Error> error = {};
    bool unreadable = false;
  };
  using Relocations = std::shared_ptr<std::vector<Relocated>>;
  Result<> check_change(const CacheConfig& before, const CacheConfig& wanted);
  Result<> begin_change();
  void end_change();
  struct Growth {
    std::optional<BlockLayout> layout;  // more memory, or the longer files; nothing: there is room
    std::vector<PreparedMemory> prepared;
  };
  Result<> grow(const CacheConfig& before, const CacheConfig& grown,
                const Cache::Remember& remember);
  Result<Growth> make_room(Tier tier, std::uint32_t num_blocks);
  struct TierSize {
    Tier tier = Tier::pinned;
    std::uint32_t num_blocks = 0;
  };
  void take_room(TierSize size, Growth growth);
  void take_settings(const CacheConfig& wanted);
  void label_files(std::uint32_t num_blocks);
  struct Sizes {
    const CacheConfig& before;
    const CacheConfig& after;
  };
  Result<> shrink(const Sizes& sizes, const std::vector<Tier>& tiers,
                  const Cache::Remember& remember);
  void wait_until_shrunk(Tier tier);
  void trim(Tier tier);
  void settle_sizes(Section& section);
  void cut_chains(Tier tier, std::uint32_t count);
  void relocate_some(Section& section, Tier tier);
  void copy_in_memory(Tier tier, const Relocations& items);
  void copy_on_disk(const Relocations& items);
  void relocated(Tier tier, const Relocations& items);
};

// Holds a cache's lock. What must not happen under it (answers, jobs, callbacks) is collected and
// runs when this is destroyed, after those who wait for slots were served.
class Section {
 public:
  explicit Section(CacheCore& core);
  ~Section();
  Section(const Section&) = delete;
  Section& operator=(const Section&) = delete;

  void after(UniqueFunction<void()> action) { actions_.push_back(std::move(action)); }
  // Those who wait for slots are served once more: something that they count on has changed.
  void serve_again() { serve_again_ = true; }
  bool take_serve_again() { return std::exchange(serve_again_, false); }
  TimePoint now() const { return now_; }
  std::int64_t unix_ms() const { return unix_ms_; }
  // When something that lasts so long from now ends, for people.
  std::int64_t unix_ms_at(TimePoint end) const {
    return unix_ms_ + std::chrono::duration_cast<std::chrono::milliseconds>(end - now_).count();
  }

 private:
  CacheCore& core_;
  TimePoint now_;
  std::int64_t unix_ms_;
  bool serve_again_ = false;
  std::vector<UniqueFunction<void()>> actions_;
};

}  // namespace cairn
