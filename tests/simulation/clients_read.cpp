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

namespace {

// The blocks that a match of the first n keys needs.
std::vector<KeyNumber> needed(const Oracle& oracle, const CacheConfig& config,
                              const std::vector<KeyNumber>& keys, std::size_t n) {
  std::vector<KeyNumber> all;
  for (KvGroupNumber group = 0; group < config.kv_group_count(); ++group) {
    for (std::size_t i = 0; i < n; ++i) {
      const std::uint64_t tokens_after = (n - i - 1) * config.tokens_per_key();
      const bool is_needed = config.kind_of(group) == KvGroupKind::full ||
                             (config.kind_of(group) == KvGroupKind::state && i + 1 == n) ||
                             (config.kind_of(group) == KvGroupKind::window &&
                              tokens_after + 1 < config.kv_groups[group].window_tokens);
      if (is_needed) all.push_back(oracle.in_group(keys[i], group));
    }
  }
  return all;
}

}  // namespace

void Clients::match_groups(Random& random) {
  State& self = *state_;
  const CacheConfig& config = self.cache->config();
  std::vector<KeyNumber> keys = self.some_chain(random);
  for (KeyNumber& key : keys) key = self.oracle.in_group(key, 0);
  const std::vector<BlockKey> names = self.names(keys);
  const std::uint32_t lease_ms = State::some_lease_ms(random);
  GroupMatch result;
  self.oracle.look();
  const auto matched =
      self.cache->match_groups({.keys = testing::views(names), .lease_ms = lease_ms}, result);
  if (!matched) return self.expect("match_groups", matched.error(), {ErrorCode::too_many});
  // A match first ends expired leases. Their blocks may go with them.
  self.oracle.look();
  for (std::size_t n = keys.size(); n > result.matched; --n) {
    const auto blocks = needed(self.oracle, config, keys, n);
    if (std::ranges::all_of(blocks, [&](KeyNumber key) {
          return self.oracle.must_be_found(key, self.queue.now());
        })) {
      self.unexpected("match_groups", "a longer prefix can be used");
    }
  }
  const auto blocks = needed(self.oracle, config, keys, result.matched);
  if (blocks.size() != result.blocks.size()) self.unexpected("match_groups", "another number");
  auto lease = std::make_shared<HeldLease>();
  for (const GroupMatch::Block& block : result.blocks) {
    const KeyNumber key = self.oracle.in_group(keys[block.key], block.handle.kv_group);
    if (std::ranges::find(blocks, key) == blocks.end()) {
      self.unexpected("match_groups", self.oracle.text(key) + " is not needed");
    }
    if (!self.oracle.present(key)) {
      self.unexpected("match_groups", self.oracle.text(key) + " is not there");
    }
    if (block.handle.tier != self.oracle.highest(key)) continue;
    lease->blocks.push_back(std::make_shared<HeldBlock>(HeldBlock{block.handle, key}));
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
