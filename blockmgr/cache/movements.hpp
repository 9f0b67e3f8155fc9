#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <unordered_map>
#include <vector>

#include "blockmgr/cache/cache.hpp"
#include "blockmgr/cache/single_flight.hpp"
#include "blockmgr/cache/transfer_batch.hpp"
#include "blockmgr/index/block_store.hpp"
#include "transport/engine/transfer_engine.hpp"

namespace cairn {

// True where the error of a copy says that the source's bytes are not what they should be: a disk
// tier is only ever read as a source, and a device's error while it is one is its own.
bool accuses_source(Tier source, ErrorCode code);
// Why a key that was deleted meanwhile did not arrive.
Error key_vanished();

// Copies between a cache's tiers, in batches: what leaves a tier (offload), what is written through
// and what clients ask for. A new copy is added to its key only once every byte is there. Part of a
// cache's state: every call has the section that holds the lock.
class Movements {
 public:
  using Batch = std::shared_ptr<TransferBatch>;
  using Ended = UniqueFunction<void(Section&, const TransferBatch&)>;

  // --- what goes down without being asked for (movements_down.cpp)
  // Copies leaving ones to the next lower tier and drops them; drops them at once where there is no
  // room. `ended` runs under the lock, maybe now.
  void offload(Section& section, std::vector<SlotRef> victims, EvictionReason reason, Ended ended);
  void write_through(Section& section, std::span<const SlotRef> committed);
  // Blocks of the tier that are being written through, which can be evicted once that has ended.
  std::uint32_t written_through(Tier from) const { return written_through_[index_of(from)]; }
  // A leaving copy that goes nowhere is dropped, but where somebody uses it or present children
  // would be cut off: whether it went. Its pin goes in any case.
  bool let_go(Section& section, SlotRef victim, EvictionReason reason);
  PendingList pending(Section& section, const PendingRequest& request) const;

  // --- what clients ask for (movements_fetch.cpp)
  // What a key is to a batch that is open.
  enum class Role : std::uint8_t {
    there,     // it is in the tier
    named,     // the batch brings it, or waits for it, by now
    followed,  // another one brings it
    missing,
  };
  Role role_of(Section& section, const Batch& batch, EntryNumber entry);
  // Takes the key on: its copy stays, is waited for, or is to be made. REQUIRES: it is not named.
  void add_key(Section& section, const Batch& batch, EntryNumber entry);
  // So that jobs read from one tier each. Of an open batch, whose items nobody else looks at:
  // without the lock.
  static void group_by_source(TransferBatch& batch);
  // It is moved, or stays: what an open batch pinned counts as used.
  static void use(Section& section, SlotRef pinned_in_place);
  // Closes the batch, asks for the slots and takes the keys already there for done.
  void launch(Section& section, const Batch& batch, std::uint64_t already_there);
  // An open batch comes to nothing. Gives way.
  void give_up(Section& section, const Batch& batch);
  void cancel(Section& section, TransferId id);  // nothing where it is over
  void cancel_all(Section& section);

  // --- copies that come and go
  // After a movement: the copies above `to` and the one in `from` go, at once or after the reads
  // under way; leased ones stay.
  struct Moved {
    EntryNumber key = kNoEntry;
    Tier from = Tier::device;
    Tier to = Tier::device;
  };
  void drop_moved_copies(Section& section, const Moved& moved);
  void hold_for_lease(Section& section, const TransferBatch& batch, SlotRef copy);
  // Drops a copy that an error of reading it accuses. `generation` says whose bytes those were.
  void drop_unreadable(Section& section, SlotRef at, std::uint64_t generation, const Error& error);

  // --- counted since the cache was made
  struct Route {
    std::array<std::uint64_t, kNumTransferOutcomes> blocks{};
    std::uint64_t bytes = 0;
    std::uint64_t in_flight_blocks = 0;
  };
  const Route& route(Tier from, Tier to) const { return routes_[index_of(from)][index_of(to)]; }
  const DiskAdmissionStats& disk_admission() const { return disk_admission_; }
  std::uint64_t disk_full() const { return disk_full_; }  // blocks not written for want of room

 private:
  struct Items {
    std::size_t first = 0;
    std::size_t count = 0;
    std::int32_t priority = 0;
  };
  // movements.cpp
  Route& route_of(const TransferBatch& batch, Tier from) {
    return routes_[index_of(from)][index_of(batch.to)];
  }
  void start(Section& section, const Batch& batch, std::span<const SlotRef> destinations);
  void submit_next(Section& section, const Batch& batch);
  static std::vector<SlotHeader> headers_of(CacheCore& core,
                                            std::span<const TransferBatch::Item> items);
  static void submit_items(CacheCore& core, const Batch& batch, Items items);
  void items_ended(Section& section, const Batch& batch, Items items, const JobOutcome& outcome);
  // False where its key went meanwhile.
  bool arrived(Section& section, TransferBatch& batch, std::size_t index);
  void not_arrived(Section& section, TransferBatch& batch, std::size_t index, const Error* error);
  void cancel_batch(Section& section, const Batch& batch);
  void finish(Section& section, const Batch& batch);
  void drop_unless_leased(Section& section, SlotRef at);
  // movements_down.cpp
  void begin_in_background(Section& section, const Batch& batch);
  bool admit(Section& section, SlotRef at);  // whether it goes to disk; counted
  void let_source_go(Section& section, const TransferBatch& batch, SlotRef source);
  std::size_t within_budget(Section& section, std::size_t blocks);
  // movements_fetch.cpp
  void bring(Section& section, const Batch& batch);
  void ask_for_slots(Section& section, const Batch& batch);
  void refused(Section& section, const Batch& batch, const Error& why);
  static void let_kept_go(Section& section, TransferBatch& batch);
  SingleFlight::Expected& add_item(Section& section, const Batch& batch, const BlockKey& key,
                                   SlotRef source);
  // A key that a transfer was bringing is there or, for the `error`, is not. Without either
  // (cancelled, no slots, or gone and back) it is added to `again`, which is nobody's, for those
  // who still want it; bring() is then the caller's.
  void tell_followers(Section& section, TransferBatch& batch, std::size_t index, const Error* error,
                      Batch& again);

  std::array<std::uint32_t, kNumTiers> written_through_{};  // by source
  std::unordered_map<TransferId, Batch> transfers_;
  SingleFlight flights_;
  // Offloads and write-through that are not over, in the order in which they began.
  std::map<std::uint64_t, Batch> background_;
  std::uint64_t last_background_ = 0;
  std::array<std::array<Route, kNumTiers>, kNumTiers> routes_;  // [from][to]
  DiskAdmissionStats disk_admission_;
  std::uint64_t disk_full_ = 0;
};

}  // namespace cairn
