#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/unique_function.hpp"
#include "blockmgr/cache/cache.hpp"
#include "blockmgr/cache/held_lease.hpp"
#include "blockmgr/core/partial_blocks.hpp"
#include "blockmgr/index/slot_ref.hpp"

namespace cairn {

class CacheCore;

// Stores blocks in a cache, whatever the source of their bytes.
//
//   add()… → hold_present() → allocate() → the bytes → commit() → release()
//
// Call hold_present() to report blocks that are already present. The bytes of a block arrive
// through room() and finish(), or through copies that the caller starts and reports with copied().
// Only commit() makes blocks present, and only blocks whose bytes have all arrived; each other
// block has an error.
//
// One call at a time, except that the ends of copies and writes of different items may overlap. The
// ingest must outlive the operations it has begun. Its destructor releases everything it holds.
class Ingest {
 public:
  struct Terms {
    LeaseHolder holder = {};
    std::shared_ptr<BlockQuota> quota = {};  // null: no quota
    std::shared_ptr<LeaseQuota> pins = {};   // counts the blocks held; null: not counted
    RequestHint hint = {};                   // applied when the blocks are released
    // The part of each block that is stored. The items are then of one KV group, whose blocks have
    // that shard.
    std::optional<ShardSelector> shard = {};
  };
  enum class State : std::uint8_t {
    absent,     // has no slot
    present,    // was already stored, and is held
    granted,    // its slot is being filled
    filled,     // all bytes have arrived
    committed,  // stored under its key
    duplicate,  // another caller committed the key first; that block is not held
    // With a shard:
    there,    // was there before, in a block that lacks others
    pending,  // is kept; the block lacks others
  };
  // Whether the item's bytes are not needed.
  static bool is_there(State state) { return state == State::present || state == State::there; }
  struct Item {
    CommitBlock block;  // its handle is set once it has a slot or is present
    State state = State::absent;
    std::optional<Error> error = {};

    SlotRef slot() const { return {block.handle.tier, static_cast<SlotNumber>(block.handle.slot)}; }
  };

  Ingest(std::shared_ptr<Cache> cache, Terms terms)
      : cache_(std::move(cache)), core_(cache_->core()), terms_(std::move(terms)) {}
  ~Ingest() { release(); }
  Ingest(const Ingest&) = delete;
  Ingest& operator=(const Ingest&) = delete;

  void reserve(std::size_t items) { items_.reserve(items); }
  void add(CommitBlock block) { items_.push_back({.block = std::move(block)}); }
  const std::vector<Item>& items() const { return items_; }
  // For fields that commit() needs and that are known only after add().
  CommitBlock& block(std::size_t item) { return items_[item].block; }
  // The block will not be committed, and no more bytes come. Returns its staging, which others may
  // be waiting for: the other items, for example.
  void fail(std::size_t item, Error error);
  void fail_all(const Error& error);
  // The error of the first item that has one; null if none has.
  const Error* first_error() const;

  // Holds the blocks that are already present until release(), so that making room for the others
  // does not evict them. Errors: as Cache::hold(); exists if one of these blocks refuses
  // duplicates.
  Result<> hold_present();
  // Checks that those blocks are still held, and renews their lease. Returns an error if the lease
  // has expired or the cache is gone.
  Result<> check_present();
  // The lease that holds them; empty if it holds nothing.
  const HeldLease& present() const { return present_; }
  // Holds the blocks that other callers committed first. A block that is gone again gets an error.
  void hold_duplicates();

  // A shard of a block that others have begun goes to that block.
  //
  // Allocates slots for the absent items. In a cache of several KV groups, items of one group must
  // follow each other in the order of the groups. Evicts the parents of these blocks only if it can
  // evict nothing else. Blocks that no match would reach evict only few others
  // (AllocateRequest::follows).
  enum class Room : std::uint8_t {
    all,         // all or none
    some,        // as many as fit, from the first item on; the others get an error
    free_slots,  // all or none, without eviction
  };
  enum class Filled : std::uint8_t {
    by_writes,  // room() and finish()
    by_copies,  // copies by the caller, which reports each with copied()
  };
  struct Slots {
    Tier tier = Tier::device;
    std::uint8_t priority = 50;
    Room room = Room::all;
    Filled filled = Filled::by_writes;
  };
  // If this fails, `ended` and each absent item get the error. Releases the lock between steps.
  void allocate(const Slots& slots, Done<> ended);
  // Uses these allocated slots instead of allocate(): one per item, in order. Takes over a pin of
  // each, and unpins them if it fails. Errors: unknown_cache; too_many leases, in which case the
  // caller keeps the pins.
  Result<> adopt(std::span<const SlotRef> slots);
  // The items that got a slot, in order.
  std::span<const std::size_t> granted() const { return std::span(absent_).first(granted_); }

  // Opens the slot for writing, as Cache::write(). REQUIRES: a granted item.
  Result<> open(std::size_t item);
  // As in BlockWriter. room() opens the item if necessary.
  std::vector<iovec> in_place(std::size_t item);
  void room(std::size_t item, Done<std::span<const iovec>> ready);
  void finish(std::size_t item, Done<> done);
  // Reports that no more bytes go to these items. Returns true to the call that reports the last of
  // all items. Several threads may call it at a time, each with other items. Releases the lock
  // between steps.
  bool copied(std::span<const std::size_t> items);

  // Commits the items that are filled and have no error. If the whole commit fails, `ended` and
  // each of these items get the error. Then::release also ends their lease.
  enum class Then : std::uint8_t { hold, release };
  void commit(Then then, Done<> ended);
  // Releases everything it holds: first the new blocks, then those that were already present.
  void release();
  // As release(), and sets the last use of the committed blocks to these times, one per granted
  // item. They become the least recently used.
  void release_as_used(std::span<const std::int64_t> unix_ms);

 private:
  std::vector<std::optional<BlockKey>> followed() const;
  std::vector<std::uint32_t> group_counts() const;
  Result<> allocated(Result<Allocation> allocation);
  void join_partials(const Slots& slots);
  Result<> keep_partials(const Slots& slots);
  void leave_partials();
  void commit_shards(std::vector<std::size_t> whole, std::vector<CommitBlock> blocks, Done<> ended);
  Result<> pin_all();
  void committed(std::span<const std::size_t> items,
                 const Result<std::vector<CommitStatus>>& statuses);

  const std::shared_ptr<Cache> cache_;
  const std::shared_ptr<CacheCore> core_;
  const Terms terms_;
  std::vector<Item> items_;
  std::vector<std::size_t> absent_;  // as of allocate()
  std::size_t granted_ = 0;          // how many of them have a slot
  std::size_t on_their_way_ = 0;     // copies to pinned slots; under the cache's lock
  HeldLease present_;
  HeldLease lease_;
  // With a shard: what holds each item's slot, and all keepers that this has entered.
  std::vector<std::shared_ptr<PartialBlocks::Keeper>> keepers_;
  std::vector<std::shared_ptr<PartialBlocks::Keeper>> entered_;
  std::vector<std::optional<BlockWriter>> writers_;  // per item; end before the lease
};

}  // namespace cairn
