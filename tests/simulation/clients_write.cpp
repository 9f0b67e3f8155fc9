// Clients that fill slots.
#include <cstring>

#include "tests/simulation/clients_state.hpp"

namespace cairn::sim {

void Clients::allocate(Random& random) {
  State& self = *state_;
  const std::vector<KeyNumber> keys = self.some_chain(random);
  const std::uint32_t lease_ms = State::some_lease_ms(random);
  const auto count = static_cast<std::uint32_t>(keys.size());
  std::vector<std::uint32_t> group_counts;
  if (self.oracle.groups() > 1) {
    group_counts.assign(self.oracle.group(keys.front()) + std::size_t{1}, 0);
    group_counts.back() = count;
  }
  const AllocateRequest request{.count = count,
                                .group_counts = std::move(group_counts),
                                .tier = self.some_tier(random),
                                .lease_ms = lease_ms,
                                .priority = static_cast<std::uint8_t>(random.once_in(3) ? 20 : 50),
                                .may_evict = !random.once_in(8)};
  self.cache->allocate(
      request, self.answer<Allocation>([keys, lease_ms](State& at, Result<Allocation> allocation) {
        if (!allocation) {
          return at.expect("allocate", allocation.error(),
                           {ErrorCode::no_capacity, ErrorCode::queue_full, ErrorCode::too_many});
        }
        if (allocation->blocks.size() != keys.size()) at.unexpected("allocate", "another count");
        auto lease = std::make_shared<HeldLease>();
        lease->id = allocation->lease;
        lease->end = at.queue.now() + std::chrono::milliseconds(lease_ms);
        for (std::size_t i = 0; i < keys.size(); ++i) {
          at.oracle.check_new(allocation->blocks[i]);
          lease->blocks.push_back(
              std::make_shared<HeldBlock>(HeldBlock{allocation->blocks[i], keys[i], Filled::no}));
        }
        at.leases.push_back(std::move(lease));
      }));
}

void Clients::write(Random& random) {
  State& self = *state_;
  const auto lease = self.some_lease(random);
  if (lease == nullptr || lease->blocks.empty()) return;
  const std::uint64_t start = random.below(lease->blocks.size());
  for (std::size_t n = 0; n < lease->blocks.size(); ++n) {
    const auto held = lease->blocks[(start + n) % lease->blocks.size()];
    HeldBlock& block = *held;
    if (block.filled != Filled::no || Oracle::is_zeros(block.key)) continue;
    auto writer = self.cache->write({.lease = lease->id, .block = block.handle});
    self.oracle.look();
    if (!self.alive(lease, writer, "write")) return;
    if (!writer) return self.expect("write", writer.error(), {});
    block.filled = Filled::busy;
    auto writing = std::make_shared<BlockWriter>(std::move(*writer));
    const bool leaves = random.once_in(12);
    const Duration pause = self.queue.some_delay();
    writing->room(self.answer<std::span<const iovec>>(
        [lease, held, writing, leaves, pause](State& at, Result<std::span<const iovec>> room) {
          HeldBlock& target = *held;
          if (!room) {
            target.filled = Filled::no;
            return at.expect("room", room.error(), {ErrorCode::queue_full});
          }
          const testing::Bytes& bytes = at.oracle.bytes(target.key);
          std::size_t from = 0;
          for (const iovec& part : *room) {
            // A client that leaves writes only a part.
            const std::size_t some = leaves ? part.iov_len / 2 : part.iov_len;
            std::memcpy(part.iov_base, bytes.data() + from, some);
            from += part.iov_len;
          }
          if (from != bytes.size()) at.unexpected("room", "another size");
          if (leaves) {
            target.filled = Filled::no;
            return;
          }
          at.queue.after(pause, [state = at.shared_from_this(), lease, held, writing] {
            if (state->over) return;
            writing->finish(
                state->answer<void>([lease, held, writing](State& end, Result<> finished) {
                  held->filled = finished ? Filled::yes : Filled::no;
                  if (finished) return;
                  if (finished.error().code == ErrorCode::lease_expired && !end.lives(*lease))
                    return;
                  end.expect("finish", finished.error(), {ErrorCode::lease_expired});
                }));
          });
        }));
    return;
  }
}

void Clients::commit(Random& random) {
  State& self = *state_;
  const auto lease = self.some_lease(random);
  if (lease == nullptr) return;
  std::vector<CommitBlock> blocks;
  std::vector<std::shared_ptr<HeldBlock>> which;
  for (const auto& held : lease->blocks) {
    const HeldBlock& block = *held;
    const bool ready =
        block.filled == Filled::yes || (block.filled == Filled::no && Oracle::is_zeros(block.key));
    if (!ready || random.once_in(8)) continue;
    CommitBlock commit{.handle = block.handle, .key = self.oracle.name(block.key)};
    if (const auto parent = self.oracle.parent(block.key)) {
      commit.parent = self.oracle.name(*parent);
    }
    commit.ttl_ms = Oracle::ttl_ms(block.key);
    if (random.once_in(6)) commit.metadata = "{\"n\":" + std::to_string(block.key) + "}";
    blocks.push_back(std::move(commit));
    which.push_back(held);
  }
  if (blocks.empty()) return;
  std::vector<KeyNumber> keys;
  for (const auto& held : which) {
    held->filled = Filled::committing;
    keys.push_back(held->key);
    self.oracle.commit_begun(held->key);
  }
  const CommitTerms terms{.release = random.once_in(4)};
  self.cache->commit(
      lease->id, std::move(blocks),
      self.answer<std::vector<CommitStatus>>([lease, which, keys, terms,
                                              asked_at = self.queue.now()](
                                                 State& at,
                                                 Result<std::vector<CommitStatus>> statuses) {
        for (const KeyNumber key : keys) at.oracle.commit_ended(key);
        if (!statuses) {
          for (const auto& held : which) held->filled = Filled::no;
          if (is_one_of(statuses.error(), {ErrorCode::lease_expired, ErrorCode::unknown_lease})) {
            if (at.lives(*lease)) at.unexpected("commit", words(statuses.error()));
            return at.forget(lease);
          }
          // The block may have been released or torn meanwhile.
          return at.expect(
              "commit", statuses.error(),
              {ErrorCode::state_conflict, ErrorCode::stale_generation, ErrorCode::foreign_lease});
        }
        for (std::size_t n = 0; n < which.size(); ++n) {
          HeldBlock& block = *which[n];
          // The lease no longer holds a duplicate.
          block.filled = (*statuses)[n] == CommitStatus::committed ? Filled::committed : Filled::no;
          if ((*statuses)[n] == CommitStatus::committed) {
            at.oracle.committed(block.key, asked_at);
            if (!at.oracle.present(block.key) && at.lives(*lease) && !terms.release &&
                !at.oracle.faulty()) {
              at.unexpected("commit", at.oracle.text(block.key) + " is missing afterwards");
            }
          } else {
            block.key = at.oracle.keys();
          }
        }
        std::erase_if(lease->blocks,
                      [&at](const auto& held) { return held->key == at.oracle.keys(); });
        if (terms.release) at.forget(lease);
      }),
      terms);
}

}  // namespace cairn::sim
