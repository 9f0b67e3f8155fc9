#pragma once

#include <sys/uio.h>

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.hpp"
#include "base/result.hpp"
#include "base/unique_function.hpp"
#include "blockmgr/eviction/reuse_hint.hpp"
#include "blockmgr/index/block_quota.hpp"
#include "blockmgr/index/config.hpp"
#include "blockmgr/index/lease_quota.hpp"
#include "blockmgr/index/stats.hpp"
#include "blockmgr/index/types.hpp"
#include "layouts/block_layout.hpp"

namespace cairn {

class CacheCore;
class Section;

template <class T = void>
using Done = UniqueFunction<void(Result<T>)>;

// A (layer, outer) piece of a block.
struct PieceSelector {
  std::uint32_t layer = 0;
  std::uint32_t outer = 0;
};

// One block's bytes in canonical order, pinned until this is destroyed or they were copied to
// staging. Not thread-safe; may be destroyed on any thread, also while a fetch is under way (its
// `ready` then runs all the same, with `cancelled`).
class BlockReader {
 public:
  BlockReader(BlockReader&&) noexcept;
  BlockReader& operator=(BlockReader&&) noexcept;
  ~BlockReader();

  BlockHandle handle() const;
  std::uint64_t size_bytes() const;  // of the block, or of the piece
  // Calls `ready` once, now or from another thread, with all the bytes as pieces that stay until
  // this is destroyed. Where the tier cannot be read in place they are copied to staging memory
  // first. On io_error or checksum_mismatch the copy has been dropped. queue_full: too many wait
  // for staging.
  void fetch(Done<std::span<const iovec>> ready);
  // Where the bytes lie, in canonical order, in a tier on a device too: addresses that the CPU may
  // not reach. They stay until this is destroyed. REQUIRES: of a tier in memory, without a piece.
  std::vector<iovec> in_place() const;
  // XXH3 of all the block's bytes in canonical order, where somebody has computed it since the key
  // was committed: of the bytes that fetch() gives, which then passes it to keep_checksum().
  // REQUIRES: from read(), peek() or lend(), without a piece.
  std::optional<std::uint64_t> checksum() const;
  void keep_checksum(std::uint64_t checksum);

 private:
  friend class Cache;
  friend class Departures;
  struct Impl;
  explicit BlockReader(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// The right to fill an allocated slot (or one piece of it). Destroyed unfinished, what was written
// stays uncommitted. Not thread-safe; may be destroyed on any thread.
class BlockWriter {
 public:
  BlockWriter(BlockWriter&&) noexcept;
  BlockWriter& operator=(BlockWriter&&) noexcept;
  ~BlockWriter();

  std::uint64_t size_bytes() const;
  // Room for all the bytes in canonical order: the slot itself where the CPU reaches it, else
  // staging.
  void room(Done<std::span<const iovec>> ready);
  // The slot itself, whoever reaches it, instead of room(): as BlockReader::in_place().
  std::vector<iovec> in_place();
  // REQUIRES: the room was filled. Done once every byte is in the slot.
  void finish(Done<> done);

 private:
  friend class Cache;
  struct Impl;
  explicit BlockWriter(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// What a request says of the future of its blocks. It changes only which go first.
struct RequestHint {
  ReuseHint reuse = {};
  std::string session = {};  // the conversation that it is of, as its client names it; empty: none
};

struct MatchResult {
  std::vector<BlockHandle> blocks = {};  // of keys[0..matched)
  std::optional<LeaseId> lease = {};     // nothing where nothing matched, or lease_ms is 0
  std::int64_t expires_at_unix_ms = 0;
};

struct AllocateRequest {
  std::uint32_t count = 0;
  Tier tier = Tier::device;
  std::optional<std::uint32_t> lease_ms = {};  // nothing: the cache's default
  std::uint8_t priority = 50;                  // 0 to 100; lower is evicted first
  bool may_evict = true;                       // false: free slots, or no_capacity
  bool takes_fewer = false;                    // as many as there is room for, one at least
  // Where the parents are known: the first block's, then others. Those that are here make no room
  // for these blocks where something else can. Where nothing else can, and where no match reaches
  // the first one's parent, the blocks take what is free and what no match reaches, or the place of
  // a sixteenth of the tier's blocks; what that does not suffice for is no_capacity. Read before
  // the call returns.
  std::span<const std::optional<BlockKey>> follows = {};
  std::shared_ptr<BlockQuota> quota = {};  // null: none
  std::shared_ptr<LeaseQuota> pins = {};   // what the lease holds counts there; null: nowhere
  LeaseHolder holder = {};
};

struct Allocation {
  LeaseId lease;
  std::int64_t expires_at_unix_ms = 0;
  std::vector<BlockHandle> blocks = {};
};

inline constexpr std::uint64_t kMaxTtlMs = 366ull * 24 * 3'600'000;  // a year is for ever here

struct CommitBlock {
  BlockHandle handle;
  BlockKey key;
  std::optional<BlockKey> parent = {};
  std::string metadata = {};                  // a JSON object as text; empty: none
  std::optional<std::uint64_t> ttl_ms = {};   // the key becomes a miss after that time
  std::optional<std::uint8_t> priority = {};  // nothing: as it was allocated
  std::uint32_t epoch = 1;                    // more of a block that comes back with its metadata
  bool refuse_duplicate = false;  // a key that is there already refuses the whole commit (exists)
};
// Whether who commits may have written blocks in place: a slot that he did not write holds what was
// there before, which not everybody may publish.
enum class InPlaceWrites : std::uint8_t { allowed, forbidden };
enum class CommitStatus : std::uint8_t { committed, duplicate };
struct CommitTerms {
  InPlaceWrites in_place = InPlaceWrites::allowed;
  bool release = false;   // the lease ends once all are committed
  RequestHint hint = {};  // of what the lease holds when it ends
};

// Gives up some of a lease's pins.
struct ReleaseRequest {
  std::span<const BlockHandle> blocks = {};  // empty: all, and the lease with them
  std::optional<LeaseId> to_lease = {};      // of the same cache: it holds them from then on
  // Of the request that has ended with this, where known: they change which blocks are kept.
  std::optional<std::uint32_t> input_tokens = {};
  std::optional<std::uint32_t> output_tokens = {};
  // With a session `reuse` is said of all blocks of it, else of those that are given up.
  RequestHint hint = {};
};

// What somebody expects of blocks that he does not use now.
struct HintRequest {
  std::span<const KeyView> keys = {};            // the first of a prefix first
  std::optional<std::string_view> session = {};  // its blocks, instead of keys
  ReuseHint reuse = {};
  LeaseHolder holder = {};
};
struct HintResult {
  std::uint64_t blocks = 0;   // that go earlier or later for it
  std::uint64_t shared = 0;   // that others need too, and are not lowered
  std::uint64_t missing = 0;  // keys that are not present
};

// Who holds what.
struct LeaseInfo {
  LeaseId lease;
  LeaseHolder holder = {};
  std::int64_t expires_at_unix_ms = 0;
  std::array<std::uint32_t, kNumTiers> blocks{};  // pinned, by tier
};
struct LeaseListRequest {
  std::optional<std::string> holder = {};  // only those of this token
  std::uint32_t limit = 100;
  std::uint64_t cursor = 0;  // 0: from the start
};
struct LeaseList {
  std::vector<LeaseInfo> leases = {};
  std::uint64_t next_cursor = 0;  // 0: there is no more
};

struct TransferRequest {
  std::vector<BlockKey> keys = {};
  Tier to = Tier::device;
  bool move = false;  // the source copies go once the new ones are there (leased ones stay)
  std::int32_t priority = 0;
  std::optional<LeaseId> lease = {};       // holds the copies there, while it lives
  std::shared_ptr<BlockQuota> quota = {};  // the caller's; null: none
  std::shared_ptr<LeaseQuota> pins = {};   // where its keys count until its end; null: nowhere
};

enum class TransferState : std::uint8_t { queued, running, done, failed, cancelled };
std::string_view to_string(TransferState state);
std::optional<TransferState> transfer_state_from(std::string_view word);

// A movement as a list names it: a failed one may name very many keys.
struct TransferSummary {
  TransferId id;
  std::string cache;  // empty: a group's
  TransferState state = TransferState::queued;
  std::uint64_t blocks_done = 0;
  std::uint64_t blocks_total = 0;
  std::uint64_t blocks_failed = 0;
  std::uint64_t bytes = 0;
  std::optional<Error> error = {};                  // what ended it, where that is about no key
  std::optional<std::uint64_t> agreed_blocks = {};  // of a group that agreed
  std::optional<std::vector<std::int64_t>> values = {};  // of a group that reduced numbers
  // Of a copy to or from an agent: so many layers of all its blocks have arrived, from the first
  // on.
  std::optional<std::uint64_t> layers_done = {};
};
struct TransferStatus : TransferSummary {
  struct Failure {
    BlockKey key;
    Error error;
  };
  std::vector<Failure> failures = {};
};

struct TransferListRequest {
  std::optional<std::string> cache = {};
  std::optional<TransferState> state = {};
  std::function<bool(std::string_view cache)> may_see = {};  // empty: every one
  std::uint32_t limit = 100;
  std::uint64_t cursor = 0;  // 0: from the oldest
};
struct TransferList {
  std::vector<TransferSummary> transfers = {};
  std::uint64_t next_cursor = 0;  // 0: there is no more
};

// What evict and clear did, in copies.
struct EvictResult {
  std::uint64_t evicted = 0;    // copies that left their tier
  std::uint64_t offloaded = 0;  // of those, copies that went to the next tier
  std::uint64_t leased = 0;     // copies that stay because a lease (or a movement) holds them
  std::uint64_t missing = 0;    // keys that had no copy there
};

struct BlockInfo {
  BlockHandle handle;
  SlotState state = SlotState::free;
  std::optional<BlockKey> key = {};  // nothing while allocated
  std::optional<BlockKey> parent = {};
  std::string metadata = {};
  std::uint32_t epoch = 0;  // 1 at commit, raised by each change of the metadata; 0 while allocated
  std::int64_t last_use_unix_ms = 0;
  std::uint8_t priority = 50;
};

struct BlockListRequest {
  std::optional<Tier> tier = {};
  std::optional<SlotState> state = {};  // nothing: all but free
  std::uint32_t limit = 100;
  std::uint64_t cursor = 0;  // 0: from the start
};
struct BlockList {
  std::vector<BlockInfo> blocks = {};
  std::uint64_t next_cursor = 0;  // 0: there is no more
};

// Blocks that are on their way to a lower tier without having been asked for.
struct PendingBlock {
  BlockKey key;
  Tier from = Tier::device;
  Tier to = Tier::disk;
  std::uint64_t age_ms = 0;  // since that was begun
};
struct PendingRequest {
  std::uint32_t limit = 100;
  std::uint64_t cursor = 0;  // 0: from the start
};
struct PendingList {
  std::vector<PendingBlock> blocks = {};
  std::uint64_t next_cursor = 0;  // 0: there is no more
};

// What the cache would have found of the blocks asked for if it had another size or kept others.
// Shares of 0 to 1.
struct MissRatioRequest {
  // Empty: a quarter, a half, one, two and four times the cache's own size.
  std::vector<std::uint64_t> capacities_blocks = {};
  bool with_optimum = false;  // some 10 ms
};
struct MissRatio {
  std::uint64_t requests = 0;         // seen since the cache was made or changed
  std::uint64_t capacity_blocks = 0;  // different blocks that fit into the cache
  double blocks_per_s = 0;            // asked for
  bool follows_lru = false;           // it goes by LRU for now: what is set has done worse lately
  std::uint64_t order_changes = 0;    // between LRU and what is set, since the cache was made
  struct Point {
    std::uint64_t capacity_blocks = 0;
    double lru = 0;
    double policy = 0;  // as the cache is set; told by models, with an error of some points
  };
  std::vector<Point> points = {};
  Point halved = {};  // of the cache's own size
  Point now = {};
  Point doubled = {};
  // The most that any order of eviction would find at the cache's own size, as far as the last
  // requests tell; at least what `now` says. 0 where it was not asked for.
  double optimum = 0;
  // What a GiB more brings of a tier: blocks that would be found in it or above, and are now in
  // a lower tier or nowhere.
  struct Advice {
    Tier tier = Tier::device;
    std::uint64_t added_blocks = 0;
    double hit_rate = 0;  // more of all blocks asked for
    double hits_per_s = 0;
    double tokens_per_s = 0;
  };
  std::vector<Advice> advice = {};  // of each tier, the highest first
};

// What is here of a cache, a part at a time.
struct HeldRequest {
  std::uint64_t cursor = 0;  // 0: from the start
  std::size_t limit = 0;     // keys looked at, present or not
  bool only_used_again = false;
};
struct HeldBlocks {
  struct Block {
    BlockKey key;
    Tier tier = Tier::device;  // the highest
  };
  std::vector<Block> blocks = {};
  std::uint64_t next_cursor = 0;
  std::uint64_t end = 0;  // all was looked at where the cursor is that
};

// A block of which no other copy is in the cache, and which makes room. It is found as before until
// its reader is destroyed; then it goes, unless somebody uses it meanwhile. Who waits for the room
// waits for that.
struct DepartingBlock {
  BlockKey key;
  std::optional<BlockKey> parent = {};
  BlockReader reader;
};
struct DepartureTerms {
  // Runs without locks held, on the thread that made them go, some blocks at a time. It must not
  // destroy the readers at once: room for many would be made from within itself, again and again.
  std::function<void(std::vector<DepartingBlock>)> taker = {};  // empty: they are dropped at once
  // Who has waited for room for so long waits for no more than what is with the taker.
  Duration wait_at_most{};
};

// One cache: its tiers, its index, its leases. Thread-safe; no call blocks on I/O, and what needs
// I/O answers through a Done that runs exactly once, on the calling thread or an engine thread,
// without locks held. The cache stays alive as long as somebody holds it; after its removal every
// call answers unknown_cache.
class Cache {
 public:
  explicit Cache(std::shared_ptr<CacheCore> core);
  ~Cache();
  Cache(const Cache&) = delete;
  Cache& operator=(const Cache&) = delete;

  const CacheConfig& config() const;
  std::uint64_t block_bytes() const;
  // null where the cache lacks the tier
  const BlockLayout* layout(Tier tier) const;
  Tier highest_tier() const;
  // Another for each cache that is made, also after a restart: a tier that was exported is the same
  // memory for as long as this is the same.
  std::uint64_t memory_id() const;
  // How another process maps a tier. From then on a block of it that nobody wrote through a
  // BlockWriter counts as written in place. impossible where the tier cannot be mapped,
  // and where it can be by its open file only and that cannot be passed; unknown_tier.
  Result<TierMemory> export_tier(Tier tier, bool passes_files);
  CacheStats stats() const;
  MissRatio miss_ratio(const MissRatioRequest& request = {}) const;

  // The longest prefix of `keys` that is present, in each key's highest tier. Counted in the
  // statistics. `out` is reused, so a caller that keeps it allocates nothing. lease_ms: nothing is
  // the default, 0 looks without pinning. What it pins counts in `pins`, where that is not null;
  // lease_quota where it would be too much. What `hint` says counts when the lease ends, and
  // without one at once.
  Result<> match(std::span<const KeyView> keys, std::optional<std::uint32_t> lease_ms,
                 MatchResult& out, const std::shared_ptr<LeaseQuota>& pins = nullptr,
                 const LeaseHolder& holder = {}, const RequestHint& hint = {});
  // Of a cache with a shared tier: how much of what a match did not find that tier has. What it has
  // not is counted as missed here, and by no match.
  struct Beyond {
    std::uint64_t shared_blocks = 0;
    std::uint64_t missed_blocks = 0;
  };
  void count_beyond(const Beyond& beyond);
  // Brings a lease's blocks up to `tier`, as many of the prefix as find room and the lease may
  // hold; it then holds the new copies too. Nothing where nothing has to move.
  struct OnboardRequest {
    LeaseId lease;
    std::span<const KeyView> keys;  // the matched ones
    Tier tier = Tier::device;
    std::int32_t priority = 0;
    std::shared_ptr<BlockQuota> quota = {};  // the caller's, as much room as it leaves; null: none
  };
  Result<std::optional<TransferId>> onboard(const OnboardRequest& request);
  // Pins those of the keys that are present, each in its highest copy: for who is about to answer
  // that they are. Under `lease`, which then ends `lease_ms` from now, or one of its own. Not
  // counted in the statistics. too_many leases or blocks held, lease_quota; unknown_lease,
  // lease_expired.
  struct HoldTerms {
    std::optional<std::uint32_t> lease_ms = {};  // nothing: the cache's default
    std::optional<LeaseId> lease = {};
    LeaseHolder holder = {};                // of one of its own
    RequestHint hint = {};                  // counts when that one ends
    std::shared_ptr<LeaseQuota> pins = {};  // as of a match
  };
  struct Held {
    std::vector<std::optional<BlockHandle>> blocks = {};  // of the keys; nothing: not present
    std::optional<LeaseId> lease = {};                    // nothing where none is held
    std::int64_t expires_at_unix_ms = 0;                  // of that lease
  };
  Result<Held> hold(std::span<const KeyView> keys, const HoldTerms& terms);
  // The key before it in its prefix; nothing where that is not known, or the key is not present.
  std::optional<BlockKey> parent(KeyView key) const;
  // Which of the keys are present, without pinning or counting.
  std::vector<bool> contains(std::span<const KeyView> keys) const;
  // The highest tier of each, without pinning or counting; nothing of one that is not present or,
  // where that is asked, was not used since it was committed.
  std::vector<std::optional<Tier>> highest_tiers(std::span<const KeyView> keys,
                                                 bool only_used_again);
  // In an order of their own, which a key keeps as long as it is present.
  HeldBlocks held(const HeldRequest& request) const;

  // All or none. Takes free slots, else evicts what it may, waiting for offloads. no_capacity where
  // that cannot suffice or the quota is used up; lease_quota; unknown_tier; queue_full; too_many
  // leases.
  void allocate(const AllocateRequest& request, Done<Allocation> done);
  // Only into an allocated, uncommitted block of that lease.
  struct WriteTarget {
    LeaseId lease;
    BlockHandle block;
    std::optional<PieceSelector> piece = {};
  };
  Result<BlockWriter> write(const WriteTarget& target);
  // Checks every block before it changes any. What was never written of a block is zeros, unless
  // others map the tier and nothing of the block was written through a BlockWriter: then what is
  // in the slot is what was written in place, where the caller may (else forbidden). The lease goes
  // on holding what was committed, unless the terms end it.
  void commit(const LeaseId& lease, std::vector<CommitBlock> blocks,
              Done<std::vector<CommitStatus>> done, CommitTerms terms = {});

  // The key's highest copy, for `reader`. It counts in `pins` for as long as it is pinned, where
  // that is not null. unknown_key; lease_quota.
  Result<BlockReader> read(KeyView key, std::optional<PieceSelector> piece,
                           const LeaseHolder& reader = {},
                           const std::shared_ptr<LeaseQuota>& pins = nullptr);
  // The same without counting as a use: the order of eviction stays as it is. unknown_key.
  Result<BlockReader> peek(KeyView key);
  // The same for another server's cache, which has a copy then: this one's goes first, unless it
  // was just used. Counts as read_prefix() does. unknown_key; lease_quota.
  Result<BlockReader> lend(KeyView key, const std::shared_ptr<LeaseQuota>& pins = nullptr);
  // The longest present prefix, for `reader`. All of it is pinned, or nothing: lease_quota where
  // that is more than `pins` leaves room for, or than the cache's own quota allows those who read.
  Result<std::vector<BlockReader>> read_prefix(std::span<const KeyView> keys,
                                               const LeaseHolder& reader = {},
                                               const std::shared_ptr<LeaseQuota>& pins = nullptr);

  // Answers the lease's new end as Unix ms.
  Result<std::int64_t> renew(const LeaseId& lease, std::optional<std::uint32_t> lease_ms);
  // Uncommitted slots are freed, or are the other lease's to commit. All are checked first:
  // foreign_lease, stale_generation, state_conflict. Answers how many were given up.
  Result<std::uint64_t> release(const LeaseId& lease, const ReleaseRequest& request = {});
  // Keys and sessions that are not known are no error. out_of_range: too many keys.
  Result<HintResult> hint(const HintRequest& request);
  // By number: a lease keeps its place while it is open. Looks at all that they hold.
  Result<LeaseList> leases(const LeaseListRequest& request);

  // unknown_key where any key is not present; no_capacity, also where the new copies of what counts
  // under the quota would be more than it allows; lease_quota; queue_full.
  Result<TransferId> transfer(const TransferRequest& request);
  // Brings every block to `to`, or the lowest tier. What fits beside the free slots only by making
  // room holds all that is there already until it has ended. As transfer(), but for the bound on
  // keys.
  Result<TransferId> drain(std::optional<Tier> to);
  // What is being offloaded or written through, the oldest first.
  PendingList pending(const PendingRequest& request) const;
  // The copies of `tier` leave it, offloaded as the cache does; without a tier every copy goes.
  void evict(std::vector<BlockKey> keys, std::optional<Tier> tier, Done<EvictResult> done);
  // Who is given the blocks that depart, in place of whoever was. Not what a client wants gone, and
  // not what should have been moved to a lower tier and was not.
  void on_departure(DepartureTerms terms);
  // Blocks that were to depart and were dropped, since somebody had waited for room for too long.
  std::uint64_t late_departures() const;
  // Drops every copy (of a tier) that nobody holds. Nothing is offloaded.
  Result<EvictResult> clear(std::optional<Tier> tier);
  // Drops every copy of a key. unknown_key; leased.
  Result<> erase(KeyView key);

  // Other settings and sizes, all or none of them. What still fits of the blocks stays: what would
  // be evicted last. A tier that shrinks may keep slots beyond its new end for as long as leases
  // hold them. `remember` makes the configuration durable; its error undoes what can be undone.
  // Waits for memory and files, and some seconds for blocks: for a thread that serves nobody else.
  // As make_cache refuses a configuration; unknown_tier; impossible for the device tier's size;
  // leased where leases hold more blocks than would fit; state_conflict: the tier is imported or
  // exported, or another change is under way; no_capacity; io_error.
  using Remember = std::function<Result<>(const CacheConfig&)>;
  Result<> change(const CacheChange& change, const Remember& remember);

  Result<BlockList> list(const BlockListRequest& request) const;
  Result<std::string> metadata(KeyView key) const;  // empty: none
  Result<> set_metadata(KeyView key, std::string json);

  // What is behind it: cache_core.hpp, which only this folder includes.
  const std::shared_ptr<CacheCore>& core() const { return core_; }

 private:
  const std::shared_ptr<CacheCore> core_;
};

}  // namespace cairn
