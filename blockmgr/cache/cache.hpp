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
#include "base/done.hpp"
#include "base/result.hpp"
#include "blockmgr/disk/pins_file.hpp"
#include "blockmgr/eviction/reuse_hint.hpp"
#include "blockmgr/index/block_quota.hpp"
#include "blockmgr/index/config.hpp"
#include "blockmgr/index/lease_quota.hpp"
#include "blockmgr/index/slot_ref.hpp"
#include "blockmgr/index/stats.hpp"
#include "blockmgr/index/types.hpp"
#include "blockmgr/transfer/transfer_types.hpp"
#include "layouts/block_layout.hpp"

namespace cairn {

class CacheCore;
class CacheLock;
struct EvictToRemoteTerms;

// A (layer, outer) piece of a block.
struct PieceSelector {
  std::uint32_t layer = 0;
  std::uint32_t outer = 0;
};

// One of `shards` equal ranges of a block's outer dimension, in all layers.
struct ShardSelector {
  std::uint32_t shard = 0;
  std::uint32_t shards = 1;  // divides LayoutConfig::shards
  friend bool operator==(const ShardSelector&, const ShardSelector&) = default;
};

// A whole block, a piece or a shard.
class BlockPart {
 public:
  BlockPart() = default;
  BlockPart(std::nullopt_t) {}
  BlockPart(PieceSelector piece) : piece_(piece) {}
  BlockPart(ShardSelector shard) : shard_(shard) {}
  BlockPart(const std::optional<PieceSelector>& piece) : piece_(piece) {}
  BlockPart(const std::optional<ShardSelector>& shard) : shard_(shard) {}

  bool is_whole() const { return !piece_ && !shard_; }
  const std::optional<PieceSelector>& piece() const { return piece_; }
  const std::optional<ShardSelector>& shard() const { return shard_; }

 private:
  std::optional<PieceSelector> piece_;
  std::optional<ShardSelector> shard_;
};

// The bytes of one block in canonical order. Pins the block until this is destroyed or the bytes
// were copied to staging. Not thread-safe. May be destroyed on any thread, even during a fetch; its
// `ready` then still runs, with `cancelled`.
class BlockReader {
 public:
  BlockReader(BlockReader&&) noexcept;
  BlockReader& operator=(BlockReader&&) noexcept;
  ~BlockReader();

  BlockHandle handle() const;
  std::uint64_t size_bytes() const;  // of the block or its part
  // Calls `ready` once, now or on another thread, with memory ranges that hold all the bytes and
  // stay valid until this is destroyed. If the CPU cannot read the tier, copies the block to
  // staging memory first. Errors: io_error and checksum_mismatch, after which the copy has been
  // dropped; queue_full if too many wait for staging.
  void fetch(Done<std::span<const iovec>> ready);
  // Returns the memory ranges of the block, in canonical order; valid until this is destroyed. In a
  // tier on a device, the CPU may be unable to reach them. REQUIRES: a tier in memory; a whole
  // block.
  std::vector<iovec> in_place() const;
  // Returns the XXH3 of the whole block in canonical order; nullopt if nobody has computed it since
  // the key was committed. In that case compute it from the bytes of fetch() and pass it to
  // keep_checksum(). REQUIRES: from read(), peek(), lend() or a LeavingBlock; a whole block.
  std::optional<std::uint64_t> checksum() const;
  void keep_checksum(std::uint64_t checksum);

 private:
  friend class Cache;
  struct Impl;
  struct Leaving {
    std::span<const SlotRef> victims;
    EvictionReason reason;
  };
  static void hand_out(CacheLock& locked, const Leaving& leaving,
                       const std::shared_ptr<const EvictToRemoteTerms>& to);
  explicit BlockReader(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// The right to fill an allocated slot, or a part of it. If destroyed before finish(), the
// content stays unwritten, or torn if bytes may have been written. Not thread-safe. May be
// destroyed on any thread.
class BlockWriter {
 public:
  BlockWriter(BlockWriter&&) noexcept;
  BlockWriter& operator=(BlockWriter&&) noexcept;
  ~BlockWriter();

  std::uint64_t size_bytes() const;
  // Calls `ready` once with memory for all the bytes in canonical order: the slot itself if the CPU
  // reaches it, else staging.
  void room(Done<std::span<const iovec>> ready);
  // Returns the slot itself, as BlockReader::in_place(). Use it instead of room().
  std::vector<iovec> in_place();
  // Calls `done` once every byte is in the slot. REQUIRES: the room was filled.
  void finish(Done<> done);

 private:
  friend class Cache;
  struct Impl;
  explicit BlockWriter(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// The expected future of a request's blocks. It changes only the order of eviction.
struct RequestHint {
  ReuseHint reuse = {};
  std::string session = {};  // the client's name for the conversation; empty: none
};

struct MatchResult {
  std::vector<BlockHandle> blocks = {};  // of keys[0..matched)
  std::optional<LeaseId> lease = {};     // nullopt if nothing matched or lease_ms is 0
  std::int64_t expires_at_unix_ms = 0;
};

struct GroupMatchRequest {
  std::span<const KeyView> keys = {};  // of any group
  // The caller has the blocks of the full groups for this many leading keys. They are neither
  // needed nor pinned.
  std::uint32_t have = 0;
  std::optional<std::uint32_t> lease_ms = {};  // as in match()
  std::shared_ptr<LeaseQuota> pins = {};
  LeaseHolder holder = {};
  RequestHint hint = {};
};
struct GroupMatch {
  struct Block {
    std::uint32_t key = 0;  // index in `keys`
    BlockHandle handle = {};
  };
  std::uint32_t matched = 0;       // keys
  std::uint32_t full_matched = 0;  // keys that the full groups alone would match
  std::vector<Block> blocks = {};  // by group, each in the order of the keys
  std::optional<LeaseId> lease = {};
  std::int64_t expires_at_unix_ms = 0;
};

struct AllocateRequest {
  std::uint32_t count = 0;
  // In a cache of several KV groups: the blocks of each group. Their sum is `count`, and the
  // allocated blocks come in the order of the groups. Empty: all are of group 0.
  std::vector<std::uint32_t> group_counts = {};
  Tier tier = Tier::device;
  std::optional<std::uint32_t> lease_ms = {};  // nullopt: the cache's default
  std::uint8_t priority = 50;                  // 0 to 100; lower is evicted first
  bool may_evict = true;                       // false: no_capacity without enough free slots
  bool takes_fewer = false;                    // accepts fewer blocks, at least one
  // Keys that the new blocks follow, if known: the first block's parent, then others. Those that
  // are present are evicted for the new blocks only if nothing else can be evicted. In that case,
  // and if no match reaches the first block's parent, the blocks may take only the free slots and
  // those that no match reaches, or a sixteenth of the tier if that is more; if that is too few,
  // the error is no_capacity. Read before the call returns.
  std::span<const std::optional<BlockKey>> follows = {};
  std::shared_ptr<BlockQuota> quota = {};  // null: none
  std::shared_ptr<LeaseQuota> pins = {};   // counts what the lease holds; null: none
  LeaseHolder holder = {};
};

struct Allocation {
  LeaseId lease;
  std::int64_t expires_at_unix_ms = 0;
  std::vector<BlockHandle> blocks = {};
};

inline constexpr std::uint64_t kMaxTtlMs = 366ull * 24 * 3'600'000;  // a year

struct CommitBlock {
  BlockHandle handle;
  BlockKey key;
  std::optional<BlockKey> parent = {};
  std::string metadata = {};                  // JSON object; empty: none
  std::optional<std::uint64_t> ttl_ms = {};   // after this the key is a miss
  std::optional<std::uint8_t> priority = {};  // nullopt: as allocated
  std::uint32_t epoch = 1;                    // higher for a restored block
  bool refuse_duplicate = false;              // an existing key fails the whole commit: exists
  // The part of the block that the slot holds. nullopt: all of it; in a group with shards, if some
  // of its shards were written through a BlockWriter and some were not, those that were.
  std::optional<ShardSelector> shard = {};
};
// Whether the caller may have written blocks in place. A slot that it did not write still holds its
// old content, which not every caller may publish.
enum class InPlaceWrites : std::uint8_t { allowed, forbidden };
enum class CommitStatus : std::uint8_t {
  committed,
  duplicate,  // the key, or this part of it, was there
  pending,    // the part is kept; the block lacks others
};
struct CommitTerms {
  InPlaceWrites in_place = InPlaceWrites::allowed;
  bool release = false;   // end the lease once all are committed
  RequestHint hint = {};  // for the blocks that the lease holds at its end
};

// Gives up some of a lease's pins.
struct ReleaseRequest {
  std::span<const BlockHandle> blocks = {};  // empty: all, and ends the lease
  std::optional<LeaseId> to_lease = {};      // of the same cache; takes over the pins
  // Of the request that has ended, if known. Used to decide which blocks to keep.
  std::optional<std::uint32_t> input_tokens = {};
  std::optional<std::uint32_t> output_tokens = {};
  // With a session, `reuse` applies to all blocks of the session; else to the released blocks.
  RequestHint hint = {};
};

// Changes the expected reuse of blocks without using them.
struct HintRequest {
  std::span<const KeyView> keys = {};            // in prefix order
  std::optional<std::string_view> session = {};  // instead of keys: all its blocks
  ReuseHint reuse = {};
  LeaseHolder holder = {};
};
struct HintResult {
  std::uint64_t blocks = 0;   // moved in the order of eviction
  std::uint64_t shared = 0;   // not moved, because others need them too
  std::uint64_t missing = 0;  // keys not present
};

// Keeps blocks from eviction until a time ends. See Pins for its bounds, and for what happens to
// blocks that move.
struct PinRequest {
  std::span<const BlockKey> keys = {};  // in prefix order: what does not fit is its end
  std::uint32_t ttl_ms = 0;
  bool refresh_on_hit = false;  // a match that finds one of the blocks restarts the time
  std::uint64_t max_blocks = UINT64_MAX;
  LeaseHolder holder = {};
  std::string session = {};  // whose blocks these are; empty: none
};
struct PinResult {
  std::optional<PinId> pin = {};  // nullopt: no block is pinned
  std::int64_t expires_at_unix_ms = 0;
  std::uint64_t blocks = 0;    // pinned
  std::uint64_t missing = 0;   // keys not present
  std::uint64_t budget = 0;    // blocks beyond the tier's or the token's share
  std::uint64_t too_many = 0;  // blocks beyond the number that pins may name
  std::uint64_t beyond = 0;    // blocks beyond max_blocks
};
struct PinInfo {
  PinId pin{};
  LeaseHolder holder = {};
  std::string session = {};
  std::uint64_t blocks = 0;
  std::uint64_t bytes = 0;
  std::int64_t expires_at_unix_ms = 0;
};
struct PinListRequest {
  std::optional<std::string> holder = {};  // only pins of this token
  std::uint32_t limit = 100;
  std::uint64_t cursor = 0;  // 0: from the start
};
struct PinList {
  std::vector<PinInfo> pins = {};
  std::uint64_t next_cursor = 0;  // 0: no more
};

// A conversation and what the cache holds of it now.
struct SessionInfo {
  LeaseHolder holder = {};
  std::string session = {};
  std::array<std::uint32_t, kNumTiers> blocks{};  // by the highest tier that has them
  std::uint32_t missing = 0;                      // were used, and are gone
  std::uint64_t bytes = 0;
  std::int64_t last_use_unix_ms = 0;
};
struct SessionListRequest {
  std::optional<std::string> holder = {};  // only conversations of this token
  std::uint32_t limit = 100;
};
struct SessionList {
  std::vector<SessionInfo> sessions = {};  // the latest used first
  std::uint64_t known = 0;                 // of all tokens
};

// The holder of a lease, and what it pins.
struct LeaseInfo {
  LeaseId lease;
  LeaseHolder holder = {};
  std::int64_t expires_at_unix_ms = 0;
  std::array<std::uint32_t, kNumTiers> blocks{};  // pinned, by tier
};
struct LeaseListRequest {
  std::optional<std::string> holder = {};  // only leases of this token
  std::uint32_t limit = 100;
  std::uint64_t cursor = 0;  // 0: from the start
};
struct LeaseList {
  std::vector<LeaseInfo> leases = {};
  std::uint64_t next_cursor = 0;  // 0: no more
};

struct TransferRequest {
  std::vector<BlockKey> keys = {};
  Tier to = Tier::device;
  bool move = false;  // drop the sources after the copy, except leased ones
  std::int32_t priority = 0;
  std::optional<LeaseId> lease = {};       // pins the copies in `to` while open
  std::shared_ptr<BlockQuota> quota = {};  // the caller's; null: none
  std::shared_ptr<LeaseQuota> pins = {};   // counts the keys until the end
};

// Brings blocks up before the request that needs them. Client loads go first, background work last.
struct PrefetchRequest {
  std::span<const BlockKey> keys = {};  // in prefix order: what finds no room is its end
  Tier to = Tier::pinned;
  std::int32_t priority = 0;
  std::uint64_t max_blocks = UINT64_MAX;  // copies
  std::shared_ptr<BlockQuota> quota = {};
  LeaseHolder holder = {};  // whose share it takes; null: only the share of all applies
  bool makes_room = true;   // for those that are missing; false: they only are listed
};
// Room for blocks that a prefetch fetches from elsewhere, in its share of a tier. The destructor
// gives it back. REQUIRES then: the caller does not hold the cache's lock.
class PrefetchRoom;
struct PrefetchStart {
  std::optional<TransferId> transfer = {};  // nullopt: nothing has to be copied
  std::uint64_t blocks = 0;                 // in the tier or above, or on their way
  std::uint64_t copies = 0;                 // of these, those that `transfer` brings
  std::uint64_t beyond = 0;                 // without room, or beyond max_blocks
  std::vector<BlockKey> missing = {};       // not in the cache
  std::size_t may_come = 0;                 // of the missing, from the first on: they have room
  std::shared_ptr<const PrefetchRoom> room = {};  // theirs, until they are here; null: none
};

// Moves blocks down, to make room above for others.
struct DemoteRequest {
  std::span<const BlockKey> keys = {};
  std::optional<Tier> to = {};  // nullopt: each one tier below its highest copy
  // Leaves blocks that other tokens have used, and those that blocks follow which stay.
  bool spares_shared = false;
  std::uint64_t max_blocks = UINT64_MAX;
  std::int32_t priority = 0;
  LeaseHolder holder = {};  // blocks that pins of others hold stay
  std::shared_ptr<BlockQuota> quota = {};
  std::shared_ptr<LeaseQuota> pins = {};
};
struct DemoteStart {
  std::vector<TransferId> transfers = {};  // one for each tier that gets blocks
  std::uint64_t blocks = 0;                // below, or on their way
  std::uint64_t missing = 0;               // keys not present
  std::uint64_t spared = 0;                // blocks that others need
  std::uint64_t beyond = 0;                // beyond max_blocks
  std::optional<Error> error = {};         // why some blocks stay
};

// Wishes for blocks without a pin.
struct RetainRequest {
  std::span<const BlockKey> keys = {};
  // At least this; above kOrdinaryPriority only in the holder's share of the tier.
  std::optional<std::uint8_t> priority = {};
  std::uint32_t ttl_ms = 0;  // expected again within; a TTL lasts at least as long
  LeaseHolder holder = {};
};
struct RetainResult {
  std::uint64_t blocks = 0;
  std::uint64_t missing = 0;
  std::uint64_t budget = 0;  // of the blocks: some copy has only kOrdinaryPriority
};

// Result of evict() and clear(), in copies.
struct EvictResult {
  std::uint64_t evicted = 0;    // copies that left their tier
  std::uint64_t offloaded = 0;  // of those, moved to the next tier
  std::uint64_t leased = 0;     // kept because a lease or transfer pins them
  std::uint64_t missing = 0;    // keys without a copy in the tier
};

struct BlockInfo {
  BlockHandle handle;
  SlotState state = SlotState::free;
  std::optional<BlockKey> key = {};  // nullopt while allocated
  std::optional<BlockKey> parent = {};
  std::string metadata = {};
  std::uint32_t epoch = 0;  // 0 while allocated, 1 at commit; each metadata change adds 1
  std::int64_t last_use_unix_ms = 0;
  std::uint8_t priority = 50;
};

struct BlockListRequest {
  std::optional<Tier> tier = {};
  std::optional<SlotState> state = {};  // nullopt: all but free
  std::uint32_t limit = 100;
  std::uint64_t cursor = 0;  // 0: from the start
};
struct BlockList {
  std::vector<BlockInfo> blocks = {};
  std::uint64_t next_cursor = 0;  // 0: no more
};

// Estimates the hit rates of the cache at other sizes and with other orders of eviction, from 0 to
// 1.
struct MissRatioRequest {
  // Empty: a quarter, a half, one, two and four times the cache's own size.
  std::vector<std::uint64_t> capacities_blocks = {};
  bool with_optimum = false;  // takes some 10 ms
};
struct MissRatio {
  std::uint64_t requests = 0;         // since the cache was made or changed
  std::uint64_t capacity_blocks = 0;  // distinct blocks that fit into the cache
  double blocks_per_s = 0;            // requested
  bool follows_lru = false;  // the cache follows LRU: the configured order did worse recently
  std::uint64_t order_changes = 0;  // between LRU and the configured order, since creation
  struct Point {
    std::uint64_t capacity_blocks = 0;
    double lru = 0;
    double policy = 0;  // of the configured order; a model's estimate, off by some points
  };
  std::vector<Point> points = {};
  Point halved = {};  // half the cache's size
  Point now = {};
  Point doubled = {};
  // The best hit rate of any order of eviction at the cache's own size, estimated from the last
  // requests; at least that of `now`. 0 if not requested.
  double optimum = 0;
  // The gain from a GiB more of a tier: blocks that would be found in it or above, and are now in a
  // lower tier or missing.
  struct Advice {
    Tier tier = Tier::device;
    std::uint64_t added_blocks = 0;
    double hit_rate = 0;  // gain, as a share of all requested blocks
    double hits_per_s = 0;
    double tokens_per_s = 0;
  };
  std::vector<Advice> advice = {};  // one per tier, highest first
};

// Lists the blocks of a cache in parts.
struct HeldRequest {
  std::uint64_t cursor = 0;  // 0: from the start
  std::size_t limit = 0;     // entries to look at, present or not
  bool only_used_again = false;
};
struct HeldBlocks {
  struct Block {
    BlockKey key;
    Tier tier = Tier::device;  // the highest
  };
  std::vector<Block> blocks = {};
  std::uint64_t next_cursor = 0;
  std::uint64_t end = 0;  // next_cursor of a finished listing
};

// The last copy of a block in this cache, about to make room. The cache still finds it until its
// reader is destroyed. Then the block is dropped, unless it was used meanwhile. Requests for the
// room wait for that.
struct LeavingBlock {
  BlockKey key;
  std::optional<BlockKey> parent = {};
  BlockReader reader;
};
struct EvictToRemoteTerms {
  // Runs without locks held, on the thread that evicts, with a few blocks per call. It must not
  // destroy the readers before it returns: the cache would make more room, and so call it
  // recursively.
  std::function<void(std::vector<LeavingBlock>)> taker = {};  // empty: blocks are dropped at once
  // Once a request has waited this long for room, the taker gets no more blocks for it.
  Duration wait_at_most{};
};

// One cache: its tiers, index and leases. Thread-safe. No call blocks on I/O, except change().
// Calls that need I/O take a Done, which runs exactly once, on the calling thread or a scheduler
// thread, without locks held. The cache lives as long as anybody holds it. After its removal, calls
// return unknown_cache.
class Cache {
 public:
  explicit Cache(std::shared_ptr<CacheCore> core);
  ~Cache();
  Cache(const Cache&) = delete;
  Cache& operator=(const Cache&) = delete;

  const CacheConfig& config() const;
  std::uint64_t block_bytes(KvGroupNumber kv_group = 0) const;
  // Null if the cache lacks the tier.
  const BlockLayout* layout(Tier tier) const;
  // The bytes of a whole block or of a shard. Error: impossible for a shard that the group's blocks
  // do not have.
  Result<std::uint64_t> part_bytes(KvGroupNumber kv_group,
                                   const std::optional<ShardSelector>& shard) const;
  Tier highest_tier() const;
  // Unique per created cache, also across restarts. While it is the same, an exported tier is the
  // same memory.
  std::uint64_t memory_id() const;
  // Returns what another process needs to map a tier. From then on, a block of the tier that was
  // not written through a BlockWriter counts as written in place. Errors: unknown_tier;
  // state_conflict if the tier has grown or the cache is being changed; impossible if the tier
  // cannot be mapped, or only through an open file and `passes_files` is false.
  Result<TierMemory> export_tier(Tier tier, bool passes_files);
  CacheStats stats() const;
  MissRatio miss_ratio(const MissRatioRequest& request = {}) const;

  // Finds the longest present prefix of `keys`, each key in its highest tier, and counts it in the
  // statistics. `out` is reused, so a caller that keeps it allocates nothing. `lease_ms`: nullopt
  // for the default; 0 looks without pinning. `pins`, if not null, counts the pinned blocks. `hint`
  // takes effect when the lease ends, or at once without a lease. Errors: lease_quota; too_many
  // leases or pinned blocks.
  Result<> match(std::span<const KeyView> keys, std::optional<std::uint32_t> lease_ms,
                 MatchResult& out, const std::shared_ptr<LeaseQuota>& pins = nullptr,
                 const LeaseHolder& holder = {}, const RequestHint& hint = {});
  // The same in a cache of several KV groups. Finds the largest n for which each full group has all
  // blocks of keys[0..n), each window group those that cover the last window_tokens - 1 tokens of
  // them, and each state group its block of keys[n - 1]. Pins these blocks and no others. If blocks
  // go meanwhile, a shorter prefix may be found than was there.
  Result<> match_groups(const GroupMatchRequest& request, GroupMatch& out);
  // For a cache with a shared tier: how many blocks that a match did not find the shared tier has
  // and lacks. Only count_beyond() counts misses of such a cache; match() does not.
  struct Beyond {
    std::uint64_t remote_blocks = 0;
    std::uint64_t missed_blocks = 0;
  };
  void count_beyond(const Beyond& beyond);
  // Copies a lease's blocks up to `tier`: as much of the prefix as there is room for and the lease
  // may hold. The lease then pins the new copies too. Returns nullopt if nothing has to be copied.
  struct OnboardRequest {
    LeaseId lease;
    std::span<const KeyView> keys;  // the matched ones
    Tier tier = Tier::device;
    std::int32_t priority = 0;
    std::shared_ptr<BlockQuota> quota = {};  // the caller's, limits the room; null: none
  };
  Result<std::optional<TransferId>> onboard(const OnboardRequest& request);
  // Pins the present ones of the keys, each in its highest copy, so that the caller can report them
  // as present. Extends `lease` to `lease_ms` from now, or opens a new lease. Not counted in the
  // statistics. Errors: too_many leases or pinned blocks; lease_quota; unknown_lease;
  // lease_expired.
  struct HoldTerms {
    std::optional<std::uint32_t> lease_ms = {};  // nullopt: the cache's default
    std::optional<LeaseId> lease = {};
    LeaseHolder holder = {};                // of a new lease
    RequestHint hint = {};                  // takes effect when the new lease ends
    std::shared_ptr<LeaseQuota> pins = {};  // as in match()
  };
  struct Held {
    std::vector<std::optional<BlockHandle>> blocks = {};  // per key; nullopt: not present
    std::optional<LeaseId> lease = {};                    // nullopt if no block is pinned
    std::int64_t expires_at_unix_ms = 0;                  // of that lease
  };
  Result<Held> hold(std::span<const KeyView> keys, const HoldTerms& terms);
  // Returns the key before it in its prefix; nullopt if that is not known or the key is not
  // present.
  std::optional<BlockKey> parent(KeyView key) const;
  // Returns which keys are present, without pinning or counting.
  std::vector<bool> contains(std::span<const KeyView> keys) const;
  // Returns the highest tier of each key, without pinning or counting. nullopt if not present or,
  // with `only_used_again`, if not used since its commit.
  std::vector<std::optional<Tier>> highest_tiers(std::span<const KeyView> keys,
                                                 bool only_used_again);
  // Returns the highest tier of each key's block of the group, as highest_tiers(). Without a group:
  // the lowest of the tiers that highest_tiers() names for the key's blocks of the full groups, or
  // of all groups if none is full. So a prefix is as close as its farthest block. Blocks of windows
  // and states leave before the full block of their key, so they are not asked about.
  std::vector<std::optional<Tier>> tiers_of(std::span<const KeyView> keys,
                                            std::optional<KvGroupNumber> kv_group);
  // Lists present keys in a fixed order: a key keeps its place while it is present.
  HeldBlocks held(const HeldRequest& request) const;

  // Allocates all or none. Takes free slots, then evicts, waiting for offloads. Errors: no_capacity
  // if that cannot yield enough or the quota is used up; lease_quota; unknown_tier; queue_full;
  // too_many leases.
  void allocate(const AllocateRequest& request, Done<Allocation> done);
  // The target must be an allocated, uncommitted block of the lease.
  struct WriteTarget {
    LeaseId lease;
    BlockHandle block;
    BlockPart part = {};
  };
  Result<BlockWriter> write(const WriteTarget& target);
  // Checks all blocks before it changes any. Pieces that were never written become zeros.
  // Exception: if other processes map the tier and nothing of the block was written through a
  // BlockWriter, the slot's content counts as written in place; `terms` must allow that, else the
  // error is forbidden. The lease keeps the committed blocks pinned, unless the terms end it.
  //
  // A part of a block (head shards) joins the parts of its key that others have committed, and the
  // last one commits the block, with the options of its own request. Until then a lease of the
  // server's own holds the block, and it is dropped if no part comes for partial_block_ms. Each
  // part must have been written. Errors: impossible for a shard that the group's blocks do not
  // have; state_conflict for a part that was not written.
  void commit(const LeaseId& lease, std::vector<CommitBlock> blocks,
              Done<std::vector<CommitStatus>> done, CommitTerms terms = {});

  // The shards of the layout that a block which lacks others has; empty if the key has no such
  // block.
  std::vector<std::uint32_t> pending_shards(KeyView key) const;

  // Opens the key's highest copy and counts a use by `reader`. `pins`, if not null, counts the
  // block while it is pinned. Errors: unknown_key; lease_quota; out_of_range or impossible for a
  // part that the block does not have.
  Result<BlockReader> read(KeyView key, BlockPart part, const LeaseHolder& reader = {},
                           const std::shared_ptr<LeaseQuota>& pins = nullptr);
  // As read(), without counting a use: the order of eviction stays as it is. Error: unknown_key.
  Result<BlockReader> peek(KeyView key);
  // As peek(), for another server's cache, which will then have a copy. So this cache evicts its
  // copy first, unless it was just used. Counts as in read_prefix(). Errors: unknown_key;
  // lease_quota.
  Result<BlockReader> lend(KeyView key, const std::shared_ptr<LeaseQuota>& pins = nullptr);
  // Opens the longest present prefix and counts a use by `reader`. Pins all of it or nothing:
  // lease_quota if it exceeds `pins`, or the cache's own quota for reads.
  Result<std::vector<BlockReader>> read_prefix(std::span<const KeyView> keys,
                                               const LeaseHolder& reader = {},
                                               const std::shared_ptr<LeaseQuota>& pins = nullptr,
                                               std::optional<ShardSelector> shard = {});

  // Returns the lease's new end as Unix ms.
  Result<std::int64_t> renew(const LeaseId& lease, std::optional<std::uint32_t> lease_ms);
  // Gives up pins and returns their number. Frees uncommitted slots, or passes them to the other
  // lease, which may commit them. Checks all blocks first. Errors: foreign_lease, stale_generation,
  // state_conflict.
  Result<std::uint64_t> release(const LeaseId& lease, const ReleaseRequest& request = {});
  // Pins as many of the keys as are present and within the bounds. Error: out_of_range for too many
  // keys.
  Result<PinResult> pin(const PinRequest& request);
  // Takes these keys off the token's pins; a pin without blocks ends. Returns how many had one.
  Result<std::uint64_t> unpin(std::span<const BlockKey> keys, const LeaseHolder& holder);
  // Ends the pins that the token made for the session. Returns the number of their blocks.
  Result<std::uint64_t> unpin_session(const LeaseHolder& holder, std::string_view session);
  // Ends a pin. `holder`: only if it is this token's. Returns the number of its blocks; nullopt if
  // there is no such pin.
  std::optional<std::uint64_t> end_pin(const PinId& pin, const std::optional<LeaseHolder>& holder);
  PinList pins(const PinListRequest& request);
  // The keys of a lease's blocks, or of those handles: the committed ones. Errors: unknown_lease,
  // lease_expired, stale_generation, unknown_slot.
  Result<std::vector<BlockKey>> keys_of_lease(const LeaseId& lease,
                                              std::span<const BlockHandle> blocks);
  // The blocks of a conversation that are present, in prefix order. Empty if it is unknown.
  std::vector<BlockKey> keys_of_session(const LeaseHolder& holder, std::string_view session);
  // Of the Sessions::kMaxLookedAt conversations that were used last.
  SessionList sessions(const SessionListRequest& request);
  // Unknown keys and sessions are no error. Error: out_of_range for too many keys.
  Result<HintResult> hint(const HintRequest& request);
  // Sorted by lease number, stable while open. Looks at all blocks that the leases hold.
  Result<LeaseList> leases(const LeaseListRequest& request);

  // Copies or moves blocks between tiers. Errors: unknown_key if any key is not present;
  // no_capacity, also if the new copies exceed the quota; lease_quota; queue_full.
  Result<TransferId> transfer(const TransferRequest& request);
  // Starts to bring up the blocks that are in lower tiers. Unlike a transfer it takes what finds
  // room. Copies that came for a request that has not come yet may take a quarter of a tier.
  // Errors: unknown_tier; out_of_range; queue_full.
  Result<PrefetchStart> prefetch(const PrefetchRequest& request);
  void count_action(ActionType type, ActionOutcome outcome);
  // Counts keys that a prefetch did not find anywhere.
  void count_prefetch_missing(std::uint64_t keys);
  // Blocks that a prefetch has fetched from the shared tier are here, and wait for their request.
  void note_prefetched(std::span<const BlockKey> keys, const LeaseHolder& holder);
  // Treats blocks as if they had been used since their commit, where that decides about a copy of
  // them. The order of eviction stays as it is.
  void count_as_used_again(std::span<const BlockKey> keys);
  // Starts to move blocks down. Their higher copies go when the lower one is whole, except leased
  // ones. Errors: unknown_tier; out_of_range.
  Result<DemoteStart> demote(const DemoteRequest& request);
  // Error: out_of_range for too many keys.
  Result<RetainResult> retain(const RetainRequest& request);
  // Copies every block to `to`, or to the lowest tier. If the free slots are too few, pins the
  // blocks that are already in the tier until the end. Errors: as transfer(), without the limit on
  // keys.
  Result<TransferId> drain(std::optional<Tier> to);
  // Blocks that are being copied or moved to another tier, or wait for that, oldest first: by
  // offload, write-through or a request. Releases the lock between steps.
  PendingList pending(const PendingRequest& request) const;
  // Evicts the copies in `tier`, offloading them as the cache is configured. Without a tier, drops
  // all copies.
  void evict(std::vector<BlockKey> keys, std::optional<Tier> tier, Done<EvictResult> done);
  // Sets the taker of blocks that are evicted and replaces the one before. It does not get blocks
  // that a client evicts, nor blocks whose move to a lower tier failed.
  void set_evict_to_remote(EvictToRemoteTerms terms);
  // Blocks dropped without the taker, because a request had waited too long for room.
  std::uint64_t evicted_without_remote() const;
  // Drops every copy (in a tier) that nothing pins. Offloads nothing.
  Result<EvictResult> clear(std::optional<Tier> tier);
  // Drops every copy of a key. Errors: unknown_key; leased.
  Result<> erase(KeyView key);
  // Drops every copy of these blocks, or none. Skips blocks that are not present. Errors:
  // unknown_key if no block is present; leased if a lease holds one of them.
  Result<> erase_all(std::span<const BlockKey> blocks);

  // Changes settings and sizes, all or none. Keeps as many blocks as still fit: those that would be
  // evicted last. A tier that shrinks may keep slots beyond its new end while leases hold them.
  // `remember` makes the configuration durable; its error undoes what can be undone. Blocks on
  // memory and files, and for some seconds on block moves: call it on a thread that serves no other
  // requests. Errors: those of make_cache for a configuration; unknown_tier; impossible for the
  // device tier's size; leased if leases hold more blocks than would fit; state_conflict if the
  // tier is imported or exported, or another change is in progress; no_capacity; io_error.
  using Remember = std::function<Result<>(const CacheConfig&)>;
  Result<> change(const CacheChange& change, const Remember& remember);

  Result<BlockList> list(const BlockListRequest& request) const;
  Result<std::string> metadata(KeyView key) const;  // empty: none
  Result<> set_metadata(KeyView key, std::string json);

  // The implementation, for other parts of blockmgr: blockmgr/core.
  const std::shared_ptr<CacheCore>& core() const { return core_; }

 private:
  const std::shared_ptr<CacheCore> core_;
};

}  // namespace cairn
