// Clients that look for blocks and read them.
#include "tests/simulation/clients_state.hpp"

namespace cairn::sim {

void Clients::match(Random& random) {
  State& self = *state_;
  const std::vector<KeyNumber> keys = self.some_chain(random);
  const std::vector<BlockKey> names = self.names(keys);
  const std::uint32_t lease_ms = random.once_in(3) ? 0 : State::some_lease_ms(random);
  MatchResult result;
  self.oracle.look();
  std::vector<std::optional<Tier>> before;
  for (const KeyNumber key : keys) before.push_back(self.oracle.highest(key));
  const auto matched = self.cache->match(testing::views(names), lease_ms, result);
  if (!matched) {
    return self.expect("match", matched.error(), {ErrorCode::too_many});
  }
  // A match first ends expired leases. Their blocks may go with them.
  self.oracle.look();
  // A match without a lease holds nothing. Before it returns, waiting calls may have got slots.
  if (lease_ms > 0) self.check_prefix("match", keys, result.blocks.size());
  auto lease = std::make_shared<HeldLease>();
  for (std::size_t i = 0; i < result.blocks.size(); ++i) {
    const auto highest = self.oracle.highest(keys[i]);
    const bool was_there = lease_ms == 0 && result.blocks[i].tier == before[i];
    if (result.blocks[i].tier != highest && !was_there) {
      self.unexpected("match", self.oracle.text(keys[i]) + " is reported in another tier");
    }
    if (result.blocks[i].tier != highest) continue;
    lease->blocks.push_back(std::make_shared<HeldBlock>(HeldBlock{result.blocks[i], keys[i]}));
    self.check_in_memory(*lease->blocks.back(), "matched in memory");
  }
  if (!result.lease) return;
  lease->id = *result.lease;
  lease->end = self.queue.now() + std::chrono::milliseconds(lease_ms);
  self.leases.push_back(std::move(lease));
}

void Clients::hold(Random& random) {
  State& self = *state_;
  const std::vector<KeyNumber> keys = self.some_chain(random);
  const std::vector<BlockKey> names = self.names(keys);
  const std::uint32_t lease_ms = State::some_lease_ms(random);
  self.oracle.look();
  const auto held = self.cache->hold(testing::views(names), {.lease_ms = lease_ms});
  if (!held) return self.expect("hold", held.error(), {ErrorCode::too_many});
  auto lease = std::make_shared<HeldLease>();
  for (std::size_t i = 0; i < keys.size(); ++i) {
    self.check_found("hold", keys[i], held->blocks[i].has_value());
    if (!held->blocks[i]) continue;
    lease->blocks.push_back(std::make_shared<HeldBlock>(HeldBlock{*held->blocks[i], keys[i]}));
  }
  if (!held->lease) return;
  lease->id = *held->lease;
  lease->end = self.queue.now() + std::chrono::milliseconds(lease_ms);
  self.leases.push_back(std::move(lease));
}

void Clients::read(Random& random) {
  State& self = *state_;
  const KeyNumber key = self.some_key(random);
  self.oracle.look();
  auto reader = random.once_in(3) ? self.cache->peek(self.oracle.name(key))
                                  : self.cache->read(self.oracle.name(key), {});
  self.check_found("read", key, reader.has_value());
  if (!reader) return;
  auto held = std::make_shared<HeldReader>(HeldReader{std::move(*reader), key, {}});
  self.readers.push_back(held);
  held->reader->fetch(
      self.answer<std::span<const iovec>>([held](State& at, Result<std::span<const iovec>> bytes) {
        if (!bytes) {
          if (!held->gone) std::erase(at.readers, held);
          if (held->gone && bytes.error().code == ErrorCode::cancelled) return;
          return at.expect("read", bytes.error(), {ErrorCode::queue_full});
        }
        at.oracle.check(held->key, *bytes, "read");
        if (!held->gone) held->bytes.assign(bytes->begin(), bytes->end());
      }));
}

void Clients::read_prefix(Random& random) {
  State& self = *state_;
  const std::vector<KeyNumber> keys = self.some_chain(random);
  const std::vector<BlockKey> names = self.names(keys);
  self.oracle.look();
  auto read = self.cache->read_prefix(testing::views(names));
  if (!read) return self.expect("read_prefix", read.error(), {ErrorCode::lease_quota});
  std::vector<BlockReader> readers = std::move(*read);
  self.check_prefix("read_prefix", keys, readers.size());
  for (std::size_t i = 0; i < readers.size(); ++i) {
    self.readers.push_back(
        std::make_shared<HeldReader>(HeldReader{std::move(readers[i]), keys[i], {}}));
    if (random.once_in(2)) continue;
    const auto held = self.readers.back();
    held->reader->fetch(self.answer<std::span<const iovec>>(
        [held](State& at, Result<std::span<const iovec>> bytes) {
          if (!bytes) {
            if (held->gone && bytes.error().code == ErrorCode::cancelled) return;
            return at.expect("read of a prefix", bytes.error(), {ErrorCode::queue_full});
          }
          at.oracle.check(held->key, *bytes, "read of a prefix");
          if (!held->gone) held->bytes.assign(bytes->begin(), bytes->end());
        }));
  }
}

void Clients::look_at_held(Random& random) {
  State& self = *state_;
  self.oracle.look();
  if (!self.readers.empty()) {
    const std::size_t i = random.below(self.readers.size());
    const auto held = self.readers[i];
    if (!held->bytes.empty()) self.oracle.check(held->key, held->bytes, "held by a reader");
    if (random.once_in(2)) {
      held->gone = true;
      held->bytes.clear();
      held->reader.reset();
      self.readers.erase(self.readers.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }
  for (const auto& lease : self.leases) {
    if (!self.lives(*lease)) continue;
    for (const auto& block : lease->blocks) {
      self.check_in_memory(*block, "held by a lease");
      if (block->filled == Filled::committed && !self.oracle.present(block->key) &&
          !self.oracle.faulty()) {
        self.unexpected("lease",
                        self.oracle.text(block->key) + " disappeared while a lease held it");
      }
    }
  }
}

}  // namespace cairn::sim
