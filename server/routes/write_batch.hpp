#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/mutex.hpp"
#include "blockmgr/cache/ingest.hpp"
#include "server/http/message.hpp"
#include "server/routes/discard.hpp"
#include "server/tracing/span.hpp"

namespace cairn::routes {

// Stores the blocks of an upload: commits all of them at the end, or none. Its steps may end on
// other threads after the upload is destroyed: each step shares ownership of the batch, and the
// last one releases what it holds. Call next() and finish() one after another, like an Upload's.
class WriteBatch : public std::enable_shared_from_this<WriteBatch> {
 public:
  struct Request {
    std::vector<CommitBlock> blocks = {};  // in the order of their bytes
    Tier tier = Tier::device;
    std::string metadata = {};      // of each block; kept once, not per block
    std::uint64_t block_bytes = 0;  // that arrive for each block: of all of it, or of a shard
    Ingest::Terms terms = {};
    std::optional<std::uint32_t> pin_ms = {};  // pins the blocks for this time
    Span span = {};                            // ends when the blocks are stored
  };
  // Pins the blocks that are already stored. Errors: see Ingest::hold_present().
  static Result<std::shared_ptr<WriteBatch>> open(std::shared_ptr<Cache> cache, Request request);

  // Room for the next bytes: in a slot, or to drop the bytes of a stored block.
  void next(UniqueFunction<void(http::Upload::Room)> ready);
  // Call when every byte has arrived. Commits when all blocks are in their slots. Everything is
  // released before `done` runs, so a client that has its response finds nothing pinned.
  void finish(Done<> done);
  // The blocks and their states.
  const std::vector<Ingest::Item>& items() const { return ingest_.items(); }
  // The pin that the request asked for, if a block is within the bounds of pins.
  const std::optional<PinId>& pin() const { return pin_; }

 private:
  WriteBatch(std::shared_ptr<Cache> cache, Request request);
  void give_room(UniqueFunction<void(http::Upload::Room)> ready);
  void end_block();
  void end_if_filled();
  void commit(Done<> done);
  void pin_blocks();

  const std::shared_ptr<Cache> cache_;
  const Tier tier_;
  const std::string metadata_;
  const std::uint64_t block_bytes_;
  const std::optional<std::uint32_t> pin_ms_;
  const LeaseHolder holder_;
  Span span_;
  std::optional<PinId> pin_;
  Ingest ingest_;
  std::size_t absent_ = 0;  // blocks that need a slot
  std::size_t next_block_ = 0;
  std::optional<std::size_t> open_block_;  // its slot is being filled
  std::uint64_t left_to_discard_ = 0;      // bytes of the block before next_block_
  DiscardRoom discard_;

  Mutex mutex_;
  std::size_t unfinished_ CAIRN_GUARDED_BY(mutex_) = 0;
  std::optional<Done<>> done_ CAIRN_GUARDED_BY(mutex_);  // set by finish()
};

}  // namespace cairn::routes
