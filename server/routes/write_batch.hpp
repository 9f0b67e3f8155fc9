#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/mutex.hpp"
#include "blockmgr/cache/ingest.hpp"
#include "server/http/message.hpp"
#include "server/routes/discard.hpp"

namespace cairn::routes {

// The blocks of an upload on their way from the socket into a cache: all are committed at the end,
// or none. The steps end on other threads, when the upload may be gone: they hold this, and what it
// holds ends with the last of them. next() and finish() are called one after the other, as an
// Upload's are.
class WriteBatch : public std::enable_shared_from_this<WriteBatch> {
 public:
  struct Request {
    std::vector<CommitBlock> blocks = {};  // in the order of their bytes
    Tier tier = Tier::device;
    std::string metadata = {};  // of each: a client that is slow holds one copy, not one a block
    Ingest::Terms terms = {};
  };
  // What is there already is held from now on. As Ingest::hold_present().
  static Result<std::shared_ptr<WriteBatch>> open(std::shared_ptr<Cache> cache, Request request);

  // Room for what comes next: a slot, or a place to drop what is there already.
  void next(UniqueFunction<void(http::Upload::Room)> ready);
  // Every byte has arrived: commits when all are in their slots. Nothing is held any more when
  // `done` runs, so a client that has its answer finds nothing pinned.
  void finish(Done<> done);
  // What became of the blocks.
  const std::vector<Ingest::Item>& items() const { return ingest_.items(); }

 private:
  WriteBatch(std::shared_ptr<Cache> cache, Request request);
  void give_room(UniqueFunction<void(http::Upload::Room)> ready);
  void end_block();
  void end_if_filled();
  void commit(Done<> done);

  const std::uint64_t block_bytes_;
  const Tier tier_;
  const std::string metadata_;
  Ingest ingest_;
  std::size_t absent_ = 0;  // blocks
  std::size_t next_block_ = 0;
  std::optional<std::size_t> open_block_;  // the room in its slot was given out
  std::uint64_t left_to_discard_ = 0;      // of the block before next_block_
  DiscardRoom discard_;

  Mutex mutex_;
  std::size_t unfinished_ CAIRN_GUARDED_BY(mutex_) = 0;
  std::optional<Done<>> done_ CAIRN_GUARDED_BY(mutex_);  // from finish() on
};

}  // namespace cairn::routes
