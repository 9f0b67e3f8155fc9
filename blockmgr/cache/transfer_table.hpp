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
#include "blockmgr/cache/cache.hpp"

namespace cairn {

// The movements that clients asked for, by id: those under way, and so many that have ended. A
// failed one names each key that did not arrive, so where these become too many the oldest failed
// ones go first; the last one that ended stays.
// Thread-safe. Its lock is taken inside a cache's and holds no other.
class TransferTable {
 public:
  struct Options {
    std::uint32_t max_open = 0;
    std::uint32_t max_kept = 0;
    // Above those of the server's life before this one: whoever asks for one of those is told that
    // it is not known, and never about another.
    std::uint64_t first_id = 1;
    // Of all that have ended, together. At some 200 bytes each 50 MB: those of four movements of as
    // many keys as a request may name.
    std::size_t max_kept_failures = 4 * 65'536;
  };
  using Ended = UniqueFunction<void(const TransferStatus&)>;
  using Owner = std::weak_ptr<CacheCore>;

  explicit TransferTable(Options options) : options_(options), next_id_(options.first_id) {}

  Result<TransferId> open(const Owner& owner, std::uint64_t blocks_total);  // queue_full
  void begin(TransferId id);
  struct Arrived {
    std::uint64_t blocks = 0;
    std::uint64_t bytes = 0;
  };
  void add(TransferId id, Arrived arrived);
  void add(TransferId id, TransferStatus::Failure failure);
  // What is found out only once it runs.
  void set_total(TransferId id, std::uint64_t blocks_total);
  void set_error(TransferId id, Error error);
  void set_agreed(TransferId id, std::uint64_t blocks);
  void set_values(TransferId id, std::vector<std::int64_t> values);
  void set_layers_done(TransferId id, std::uint64_t layers);
  // It never was: nobody has been told of it. REQUIRES: it has not begun.
  void withdraw(TransferId id);
  // Runs those who watch: not to be called with a cache's lock held.
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
  // Of `ended_`; answers the one after it.
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
