#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/mutex.hpp"
#include "base/result.hpp"
#include "base/unique_function.hpp"
#include "blockmgr/transfer/transfer_types.hpp"

namespace cairn {

class CacheCore;

// The transfers that clients requested, by id: those in progress and some that have ended. A failed
// transfer lists each key that did not arrive. If these become too many, the oldest failed
// transfers are dropped; the last one that ended stays. Thread-safe. Its lock may be taken under a
// cache's lock, and no other lock is taken under it.
class TransferTable {
 public:
  struct Options {
    std::uint32_t max_open = 0;
    std::uint32_t max_kept = 0;
    // Above all ids of the server's previous life. So a request for an old id fails, and never gets
    // another transfer.
    std::uint64_t first_id = 1;
    // Of all ended transfers together. At some 200 bytes each, 50 MB: the failures of four
    // transfers with as many keys as a request may name.
    std::size_t max_kept_failures = 4 * 65'536;
  };
  using Ended = UniqueFunction<void(const TransferStatus&)>;
  using Owner = std::weak_ptr<CacheCore>;

  explicit TransferTable(Options options) : options_(options), next_id_(options.first_id) {}

  struct Opening {
    Owner owner = {};        // expired: a group's
    std::string cache = {};  // its name; empty for a group
    std::uint64_t blocks_total = 0;
  };
  Result<TransferId> open(Opening opening);  // queue_full
  void begin(TransferId id);
  struct Arrived {
    std::uint64_t blocks = 0;
    std::uint64_t bytes = 0;
  };
  void add(TransferId id, Arrived arrived);
  void add(TransferId id, TransferStatus::Failure failure);
  // For totals that are known only while it runs.
  void set_total(TransferId id, std::uint64_t blocks_total);
  void set_error(TransferId id, Error error);
  void set_agreed(TransferId id, std::uint64_t blocks);
  void set_values(TransferId id, Numbers values);
  void set_layers_done(TransferId id, std::uint64_t layers);
  // Removes a transfer whose id no client has got. REQUIRES: it has not begun.
  void withdraw(TransferId id);
  // Runs the watchers, so do not call it with a cache's lock held.
  void end(TransferId id, TransferState state);

  Result<TransferStatus> status(TransferId id) const;  // unknown_transfer
  Result<Owner> owner(TransferId id) const;            // unknown_transfer
  Result<> watch(TransferId id, Ended ended);          // unknown_transfer
  TransferList list(const TransferListRequest& request) const;
  struct Counts {
    std::uint64_t queued = 0;
    std::uint64_t running = 0;
  };
  Counts counts() const;

 private:
  // Drops an element of `ended_`; returns the next one.
  std::deque<TransferId>::iterator forget(std::deque<TransferId>::iterator at)
      CAIRN_REQUIRES(mutex_);

  struct Record {
    TransferStatus status;
    Owner owner;
    std::vector<Ended> watchers;
  };
  const Options options_;
  mutable Mutex mutex_;
  std::uint64_t next_id_ CAIRN_GUARDED_BY(mutex_);
  std::map<TransferId, Record> records_ CAIRN_GUARDED_BY(mutex_);
  std::deque<TransferId> ended_ CAIRN_GUARDED_BY(mutex_);
  std::size_t kept_failures_ CAIRN_GUARDED_BY(mutex_) = 0;  // of ended_
  Counts counts_ CAIRN_GUARDED_BY(mutex_);
};

}  // namespace cairn
