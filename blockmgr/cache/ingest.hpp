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
#include "blockmgr/index/slot_ref.hpp"

namespace cairn {

class CacheCore;

// The way into a cache: blocks on their way to their keys, whoever brings the bytes.
//
//   add()… → hold_present() → allocate() → the bytes → commit() → release()
//
// hold_present() is for those who answer that a block is there already. The bytes of a block come
// by room() and finish(), or by copies that the caller starts and copied() ends. Blocks become
// present by commit() only, and only those whose bytes have all arrived; a block that did not come
// has its error.
//
// One call at a time, but for the ends of copies and writes of different items. The ingest outlives
// what it has begun; what it holds ends with it.
class Ingest {
 public:
  struct Terms {
    LeaseHolder holder = {};
    std::shared_ptr<BlockQuota> quota = {};  // null: none
    std::shared_ptr<LeaseQuota> pins = {};   // what is held counts there; null: nowhere
    RequestHint hint = {};                   // counts when the blocks are let go
  };
  enum class State : std::uint8_t {
    absent,     // it has no slot
    present,    // it was there before, and is held
    granted,    // its slot is being filled
    filled,     // every byte is there
    committed,  // found under its key
    duplicate,  // the same, but another's block, which came first and is not held
  };
  struct Item {
    CommitBlock block;  // with its handle once it has a slot, or is present
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
  // What is known of a block only after it was added, for its commit.
  CommitBlock& block(std::size_t item) { return items_[item].block; }
  // The block will not be committed.
  void fail(std::size_t item, Error error) { items_[item].error = std::move(error); }
  void fail_all(const Error& error);
  // Of the first item that has one; null: none has.
  const Error* first_error() const;

  // Holds the blocks that are there already, to the end: making room for the others does not take
  // them away. As Cache::hold(); exists where a block of those refuses duplicates.
  Result<> hold_present();
  // Whether they still are: the lease may have run out, and the cache may be gone. If not, that
  // lease begins anew.
  Result<> check_present();
  // The lease that holds them; it may hold nothing.
  const HeldLease& present() const { return present_; }
  // The same of those that came first meanwhile. One that has gone again gets an error.
  void hold_duplicates();

  // Slots for what is absent. What these blocks follow makes no room for them where something else
  // can, and those that no match would reach take the place of few (AllocateRequest::follows).
  enum class Room : std::uint8_t {
    all,         // for all or none
    some,        // for as many from the first on as there is room for: the others get an error
    free_slots,  // for all or none, and nothing is evicted
  };
  enum class Filled : std::uint8_t {
    by_writes,  // room() and finish()
    by_copies,  // the caller's own, each told by copied()
  };
  struct Slots {
    Tier tier = Tier::device;
    std::uint8_t priority = 50;
    Room room = Room::all;
    Filled filled = Filled::by_writes;
  };
  // Where there are none `ended` hears why, and so does each absent item. Gives way.
  void allocate(const Slots& slots, Done<> ended);
  // The items that have one, in their order.
  std::span<const std::size_t> granted() const { return std::span(absent_).first(granted_); }

  // The right to fill the slot, as Cache::write() gives it. REQUIRES: a granted item.
  Result<> open(std::size_t item);
  // As BlockWriter has them; room() opens what is not open.
  std::vector<iovec> in_place(std::size_t item);
  void room(std::size_t item, Done<std::span<const iovec>> ready);
  void finish(std::size_t item, Done<> done);
  // No more bytes go to these. True for the call with which that holds for all. Gives way. Several
  // threads may be in it, each with other items.
  bool copied(std::span<const std::size_t> items);

  // Makes present what is filled and has no error. `ended` hears the error that refuses all of it,
  // and so does each of these items. The lease on them ends with it where that is said.
  enum class Then : std::uint8_t { hold, release };
  void commit(Then then, Done<> ended);
  // Lets go of everything, of what came before what was there.
  void release();
  // The same, and what was committed counts as used then, one a granted item: before all that was
  // there.
  void release_as_used(std::span<const std::int64_t> unix_ms);

 private:
  std::vector<std::optional<BlockKey>> followed() const;
  Result<> allocated(Result<Allocation> allocation);
  Result<> pin_all();
  void committed(std::span<const std::size_t> items,
                 const Result<std::vector<CommitStatus>>& statuses);

  const std::shared_ptr<Cache> cache_;
  const std::shared_ptr<CacheCore> core_;
  const Terms terms_;
  std::vector<Item> items_;
  std::vector<std::size_t> absent_;  // when slots were asked for
  std::size_t granted_ = 0;          // so many of these have one
  std::size_t on_their_way_ = 0;     // copies to pinned slots; under the cache's lock
  HeldLease present_;
  HeldLease lease_;
  std::vector<std::optional<BlockWriter>> writers_;  // of the items; they go before the lease does
};

}  // namespace cairn
