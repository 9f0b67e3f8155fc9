#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <unordered_map>
#include <vector>

#include "blockmgr/index/block_store.hpp"
#include "blockmgr/transfer/single_flight.hpp"
#include "blockmgr/transfer/transfer_batch.hpp"
#include "blockmgr/transfer/transfer_types.hpp"
#include "transport/transfer/transfer_scheduler.hpp"

namespace cairn {

// Returns true if the error of a copy means that the source's bytes are bad. A copy from disk only
// reads the disk, so an I/O or checksum error is the source's. So is a device error if the source
// is a device.
bool accuses_source(Tier source, ErrorCode code);
// The error for a key that disappeared before its copy arrived.
Error key_vanished();

// Copies blocks between a cache's tiers, in batches: offload, write-through and transfers for
// clients. A key gets its new copy only after all bytes have arrived. Part of a cache's state: each
// call takes the CacheLock.
class Transfers {
 public:
  using Batch = std::shared_ptr<TransferBatch>;
  using Ended = UniqueFunction<void(CacheLock&, const TransferBatch&)>;

  // --- offload and write-through (transfers_down.cpp)
  // Copies leaving blocks to the next lower tier, then drops the sources. Drops them at once if
  // that tier has no room. `ended` runs under the lock, maybe before the call returns.
  void offload(CacheLock& locked, std::vector<SlotRef> victims, EvictionReason reason, Ended ended);
  void write_through(CacheLock& locked, std::span<const SlotRef> committed);
  // Units of the tier's blocks that are being written through. They can be evicted once that has
  // ended.
  std::uint32_t written_through(Tier from) const { return written_through_[index_of(from)]; }
  // Drops a leaving copy that has no destination. Keeps it if it is in use, or if present children
  // would be cut off and no client asked for the eviction. Releases its pin in any case. Returns
  // true if it was dropped.
  bool let_go(CacheLock& locked, SlotRef victim, EvictionReason reason);
  // One step of a list: looks at some blocks, so a list may end with a cursor before its limit.
  PendingList pending(CacheLock& locked, const PendingRequest& request) const;

  // --- transfers for clients (transfers_fetch.cpp)
  // The state of a key for an open batch.
  enum class Role : std::uint8_t {
    there,     // already in the tier
    named,     // the batch already brings it, or waits for it
    followed,  // another batch brings it
    missing,
  };
  Role role_of(CacheLock& locked, const Batch& batch, EntryNumber entry);
  // Adds the key: keeps its copy, waits for one, or plans one. REQUIRES: its role is not `named`.
  void add_key(CacheLock& locked, const Batch& batch, EntryNumber entry);
  // Sorts the items by source, so that each job reads from one tier. Needs no lock for an open
  // batch, because nobody else uses its items.
  static void group_by_source(TransferBatch& batch);
  // Counts a block that an open batch has pinned as used.
  static void use(CacheLock& locked, SlotRef pinned_in_place);
  // Closes the batch, requests the slots, and reports the keys already there as done.
  void launch(CacheLock& locked, const Batch& batch, std::uint64_t already_there);
  // Gives up an open batch. Releases the lock between steps.
  void give_up(CacheLock& locked, const Batch& batch);
  void cancel(CacheLock& locked, TransferId id);  // no effect if it has ended
  void cancel_all(CacheLock& locked);

  // --- adding and dropping copies
  // After a move: drops the copies above `to` and the one in `from`, at once or after current
  // reads. Leased copies stay.
  struct Moved {
    EntryNumber key = kNoEntry;
    Tier from = Tier::device;
    Tier to = Tier::device;
  };
  void drop_moved_copies(CacheLock& locked, const Moved& moved);
  void hold_for_lease(CacheLock& locked, const TransferBatch& batch, SlotRef copy);
  // Drops a copy if the error means that it is bad. No effect if its generation has changed.
  void drop_unreadable(CacheLock& locked, SlotRef at, std::uint64_t generation, const Error& error);

  // --- counters since the cache was created
  struct Route {
    std::array<std::uint64_t, kNumTransferOutcomes> blocks{};
    std::uint64_t bytes = 0;
    std::uint64_t in_flight_blocks = 0;
  };
  const Route& route(Tier from, Tier to) const { return routes_[index_of(from)][index_of(to)]; }
  const DiskAdmissionStats& disk_admission() const { return disk_admission_; }
  std::uint64_t disk_full() const { return disk_full_; }  // not written: disk full

 private:
  struct Items {
    std::size_t first = 0;
    std::size_t count = 0;
    Raise urgency = {};
    KvGroupNumber kv_group = 0;  // of all its blocks
  };
  // transfers.cpp
  Route& route_of(const TransferBatch& batch, Tier from) {
    return routes_[index_of(from)][index_of(batch.to)];
  }
  void begin(CacheLock& locked, const Batch& batch);  // it waits for slots from now on
  void start(CacheLock& locked, const Batch& batch, std::span<const SlotRef> destinations);
  void submit_next(CacheLock& locked, const Batch& batch);
  static std::vector<SlotHeader> headers_of(CacheCore& core,
                                            std::span<const TransferBatch::Item> items);
  static void submit_items(CacheCore& core, const Batch& batch, Items items);
  void items_ended(CacheLock& locked, const Batch& batch, Items items, const JobOutcome& outcome);
  // Returns false if its key is gone.
  bool arrived(CacheLock& locked, TransferBatch& batch, std::size_t index);
  void not_arrived(CacheLock& locked, TransferBatch& batch, std::size_t index, const Error* error);
  // These units of a prefetch came, or do not come any more.
  static void end_expected(CacheLock& locked, TransferBatch& batch, std::uint64_t units);
  void cancel_batch(CacheLock& locked, const Batch& batch);
  void finish(CacheLock& locked, const Batch& batch);
  // Whether a request waits for the key that a prefetch brings.
  bool is_requested(const SingleFlight::Place& place);
  void drop_unless_leased(CacheLock& locked, SlotRef at);
  // transfers_down.cpp
  bool admit(CacheLock& locked, SlotRef at);  // whether it may go to disk; counts the answer
  void let_source_go(CacheLock& locked, const TransferBatch& batch, SlotRef source);
  std::size_t within_budget(CacheLock& locked, std::size_t blocks);
  // transfers_fetch.cpp
  void bring(CacheLock& locked, const Batch& batch);
  void ask_for_slots(CacheLock& locked, const Batch& batch);
  void refused(CacheLock& locked, const Batch& batch, const Error& why);
  static void let_kept_go(CacheLock& locked, TransferBatch& batch);
  SingleFlight::Expected& add_item(CacheLock& locked, const Batch& batch, const BlockKey& key,
                                   SlotRef source);
  // Informs the followers of a key: it has arrived, or failed with `error`. If it did neither
  // (cancelled, no slots, or deleted and stored again), adds it to `again`, a batch without an
  // owner, for the followers that still want it. The caller must then call bring().
  void notify_followers(CacheLock& locked, TransferBatch& batch, std::size_t index,
                        const Error* error, Batch& again);

  std::array<std::uint32_t, kNumTiers> written_through_{};  // by source
  std::unordered_map<TransferId, Batch> transfers_;
  SingleFlight flights_;
  std::map<std::uint64_t, Batch> moving_;  // that have begun, oldest first
  std::uint64_t last_batch_ = 0;
  std::array<std::array<Route, kNumTiers>, kNumTiers> routes_;  // [from][to]
  DiskAdmissionStats disk_admission_;
  std::uint64_t disk_full_ = 0;
};

}  // namespace cairn
