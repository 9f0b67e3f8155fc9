#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "base/mutex.hpp"
#include "blockmgr/cache/held_lease.hpp"
#include "server/http/message.hpp"
#include "server/routes/common.hpp"
#include "server/routes/discard.hpp"
#include "server/routes/write_header.hpp"

namespace cairn::routes {

// The blocks of one bulk write on their way into their slots: all are committed at the end, or
// none. The steps end on other threads, when the upload may be gone: they hold this, and the lease
// ends with the last of them, and with it every block that was not committed. next() and finish()
// are called one after the other, as an Upload's are.
class WriteBatch : public std::enable_shared_from_this<WriteBatch> {
 public:
  // `terms` of the allocation, but for what the header says. What is there already is held from now
  // on. too_many leases.
  static Result<std::shared_ptr<WriteBatch>> open(std::shared_ptr<Cache> cache, WriteHeader header,
                                                  const AllocateRequest& terms);

  // Room for what comes next: a slot, or a place to drop what is there already.
  void next(UniqueFunction<void(http::Upload::Room)> ready);
  // Every byte has arrived: commits when all are in their slots, and answers.
  void finish(Reply reply);

 private:
  WriteBatch(std::shared_ptr<Cache> cache, WriteHeader header, const AllocateRequest& terms)
      : cache_(std::move(cache)), header_(std::move(header)), terms_(terms) {}
  Result<> hold_present();
  void allocate(UniqueFunction<void(http::Upload::Room)> ready);
  void give_room(UniqueFunction<void(http::Upload::Room)> ready);
  void open_block(UniqueFunction<void(http::Upload::Room)> ready);
  void end_block();
  void answer_if_done();
  void commit(Reply reply);
  void let_go();

  const std::shared_ptr<Cache> cache_;
  const WriteHeader header_;
  const AllocateRequest terms_;
  std::vector<bool> is_present_;  // before the write: their bytes are dropped

  // Of those that are present: nothing, making room for the others least, takes them away before it
  // was answered that they are there.
  HeldLease present_lease_;
  HeldLease lease_;
  std::vector<BlockHandle> slots_;  // of the absent keys, in order
  // Of those that were begun. They stay until the end, as what they began may be under way, and go
  // before the lease does.
  std::vector<std::unique_ptr<BlockWriter>> writers_;
  std::size_t next_block_ = 0;
  bool block_is_open_ = false;         // the last writer's room was given out
  std::uint64_t left_to_discard_ = 0;  // of the block before next_block_
  DiscardRoom discard_;

  Mutex mutex_;
  std::size_t unfinished_ CAIRN_GUARDED_BY(mutex_) = 0;
  std::optional<Error> failure_ CAIRN_GUARDED_BY(mutex_);
  std::optional<Reply> reply_ CAIRN_GUARDED_BY(mutex_);  // from finish() on
};

}  // namespace cairn::routes
