#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/unique_function.hpp"
#include "blockmgr/cache/cache.hpp"
#include "blockmgr/index/slot_ref.hpp"

namespace cairn {

class CacheCore;

// Blocks on their way into a cache out of memory that is not its own: another cache's tier, an
// agent's regions. Their slots are held by a lease of the intake's, and pinned once more until
// their bytes are there, so that a lease that ends early frees no slot that is still being written.
// What arrived whole is committed together; a block that did not has its error.
//
//   add()… → allocate() → the caller's copies, each told by copied() → commit() → release()
//
// One call at a time, but for copied(). The intake outlives what it has begun.
class Intake {
 public:
  struct Item {
    CommitBlock block;
    std::optional<Error> error = {};
    bool duplicate = false;  // somebody else's block was there first

    SlotRef slot() const { return {block.handle.tier, static_cast<SlotNumber>(block.handle.slot)}; }
  };

  Intake(std::shared_ptr<Cache> cache, std::shared_ptr<CacheCore> core)
      : cache_(std::move(cache)), core_(std::move(core)) {}
  ~Intake() { release(); }
  Intake(const Intake&) = delete;
  Intake& operator=(const Intake&) = delete;

  void add(CommitBlock block) { items_.push_back({.block = std::move(block)}); }
  const std::vector<Item>& items() const { return items_; }
  // Of a copy that failed: before copied() names it.
  void fail(std::size_t item, Error error) { items_[item].error = std::move(error); }
  void fail_all(const Error& error);

  // A slot for each, or for as many from the first on as there is room for: the others have an
  // error, and where that is all of them `ended` is told false. What these blocks follow makes no
  // room for them, and what no match would reach takes the place of few blocks. Gives way.
  struct Slots {
    Tier tier = Tier::device;
    std::shared_ptr<BlockQuota> quota = {};
    std::shared_ptr<LeaseQuota> pins = {};
    LeaseHolder holder = {};
  };
  void allocate(const Slots& slots, UniqueFunction<void(bool)> ended);
  // So many of the items, from the first on, have one.
  std::size_t granted() const { return granted_; }
  // No more bytes go to these. True for the call with which that holds for all. Gives way. Several
  // threads may be in it, each with other items.
  bool copied(std::span<const std::size_t> items);
  // Those without an error. REQUIRES: copied() was true.
  void commit(UniqueFunction<void()> ended);
  void release();  // the lease; nothing where there is none

 private:
  // How many slots are asked for, and for how many where what the blocks follow must make room.
  struct Rooms {
    std::size_t first = 0;
    std::size_t in_place = 0;
  };
  Rooms hold_parents(Tier tier);
  bool let_parents_go();  // false: there were none
  void ask(const Slots& slots, std::size_t count, UniqueFunction<void(Result<Allocation>)> answer);
  Result<> allocated(Result<Allocation> allocation);
  Result<> pin_all();
  void committed(const std::vector<std::size_t>& items,
                 const Result<std::vector<CommitStatus>>& statuses);

  const std::shared_ptr<Cache> cache_;
  const std::shared_ptr<CacheCore> core_;
  std::vector<Item> items_;
  std::optional<LeaseId> lease_;
  std::vector<SlotRef> parents_;  // pinned in their places while slots are asked for
  std::size_t granted_ = 0;
  std::size_t on_their_way_ = 0;  // items that are pinned; under the cache's lock
};

}  // namespace cairn
