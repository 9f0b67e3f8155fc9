#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "blockmgr/cache/held_lease.hpp"
#include "blockmgr/cache/ingest.hpp"
#include "blockmgr/collectives/collective_blocks.hpp"
#include "blockmgr/collectives/collective_headers.hpp"
#include "blockmgr/collectives/collective_memory.hpp"

namespace cairn {

// One operation of a group on this rank: see exchange_blocks(). exchange_blocks.cpp processes the
// keys in batches. share_round.cpp moves the blocks of a batch, round by round.
class CollectiveSession {
 public:
  CollectiveSession(const CollectiveContext& context, const CollectiveRequest& request,
                    TransferId id);
  CollectiveOutcome run();

 private:
  // This rank's state of a key of the batch.
  struct Local {
    bool held = false;
    std::optional<BlockReader> reader = {};  // set if held; read if this rank gives the block
    std::optional<std::size_t> slot = {};    // item of the ingest that has a slot for the block
    std::optional<Error> why_not = {};       // set if there is no slot, or it cannot be written
  };
  struct Batch {
    std::size_t first = 0;                // index in the request's keys
    std::unique_ptr<Ingest> ingest = {};  // for the missing keys; null if none
    std::vector<Local> local = {};
  };
  using Round = std::vector<std::size_t>;  // keys of the batch, ascending
  // A message of a round: the blocks to or from one member, and their checksums.
  struct Message {
    std::size_t member = 0;
    bool out = false;
    Round keys = {};
    std::vector<std::size_t> blocks = {};  // numbers in the room
    std::vector<BlockChecksum> checksums = {};
    std::vector<iovec> pieces = {};
  };

  std::uint32_t rank() const { return context_.communicator.place().rank; }
  bool takes() const { return !owner_ || *owner_ != me_; }
  const BlockKey& key_of(const Batch& batch, std::size_t key) const {
    return request_.keys[batch.first + key];
  }
  template <class T>
  Result<std::vector<T>> swap(std::vector<T> mine);
  Result<> exchange_all();
  Result<> exchange_batch(Batch& batch);
  void look_up(Batch& batch);
  Result<std::vector<bool>> hold(std::span<const KeyView> keys);
  void find_slots(Batch& batch) const;
  Result<std::vector<KeyHeader>> swap_headers(const Batch& batch);
  Result<> move_round(Batch& batch, const CollectivePlan& plan, const Round& round);
  std::vector<Message> messages_of(const CollectivePlan& plan, const Round& round) const;
  void fill_room(Batch& batch, CollectiveMemory& room, std::vector<Message>& messages) const;
  Result<> transmit(std::vector<Message>& messages);
  void keep(Batch& batch, const CollectivePlan& plan, CollectiveMemory& room,
            const Message& message);
  void commit(Batch& batch, const CollectivePlan& plan, const Round& keys);
  void report_the_rest(const Batch& batch, const CollectivePlan& plan);
  Result<> agree();

  // Report a key; only the first report counts.
  void done(std::size_t key, std::uint64_t bytes);
  void failed(std::size_t key, const Error& error);

  const CollectiveContext& context_;
  const CollectiveRequest& request_;
  const TransferId id_;
  Cache& cache_;
  const Tier tier_;
  Members members_;
  std::size_t me_ = 0;                // index in members_
  std::optional<std::size_t> owner_;  // the only member that gives, if any
  // Holds the blocks that this rank had or has received until the operation ends, so that later
  // blocks cannot evict them. Only on ranks that take.
  HeldLease kept_;
  std::vector<bool> reported_;
  bool any_failed_ = false;
  bool refused_ = false;  // by all ranks alike, so the group stays usable
};

}  // namespace cairn
