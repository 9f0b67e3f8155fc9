// Clients that move and drop blocks.
#include "tests/simulation/clients_state.hpp"

namespace cairn::sim {

void Clients::evict(Random& random) {
  State& self = *state_;
  std::optional<Tier> tier;
  if (!random.once_in(3)) tier = self.some_tier(random);
  const auto chain = self.some_chain(random);
  self.oracle.may_go(chain);
  self.cache->evict(self.names(chain), tier,
                    self.answer<EvictResult>([](State& at, Result<EvictResult> result) {
                      if (!result) at.expect("evict", result.error(), {});
                    }));
}

void Clients::erase(Random& random) { erase_key(state_->some_key(random)); }

void Clients::erase_key(KeyNumber key) {
  State& self = *state_;
  self.oracle.look();
  const bool there = self.oracle.present(key);
  self.oracle.may_go({&key, 1});
  const auto erased = self.cache->erase(self.oracle.name(key));
  self.oracle.look();
  if (!erased) {
    return self.expect("erase", erased.error(), {ErrorCode::leased, ErrorCode::unknown_key});
  }
  if (!there || self.oracle.present(key)) self.unexpected("erase", self.oracle.text(key));
  self.oracle.erased(key);
}

void Clients::clear(Random& random) {
  State& self = *state_;
  self.oracle.all_may_go();
  const auto cleared = self.cache->clear(self.some_tier(random));
  if (!cleared) self.expect("clear", cleared.error(), {});
}

void Clients::transfer(Random& random) {
  State& self = *state_;
  const auto lease = random.once_in(2) ? self.some_lease(random) : nullptr;
  const auto chain = self.some_chain(random);
  self.oracle.held_in_this_step(chain);
  TransferRequest request{.keys = self.names(chain),
                          .to = self.some_tier(random),
                          .move = random.once_in(3),
                          .priority = static_cast<std::int32_t>(random.below(3))};
  if (lease != nullptr) request.lease = lease->id;
  const bool drains = random.once_in(16);
  if (drains) self.oracle.all_may_go();
  const auto id =
      drains ? self.cache->drain(std::nullopt) : self.cache->transfer(std::move(request));
  if (!id) {
    return self.expect("transfer", id.error(),
                       {ErrorCode::unknown_key, ErrorCode::no_capacity, ErrorCode::queue_full});
  }
  self.transfers.push_back(*id);
}

void Clients::onboard(Random& random) {
  State& self = *state_;
  const auto lease = self.some_lease(random);
  if (lease == nullptr) return;
  std::vector<BlockKey> names;
  for (const auto& block : lease->blocks) {
    if (block->filled == Filled::committed) names.push_back(self.oracle.name(block->key));
  }
  const std::vector<KeyView> views = testing::views(names);
  const auto id =
      self.cache->onboard({.lease = lease->id, .keys = views, .tier = self.some_tier(random)});
  if (!self.alive(lease, id, "onboard")) return;
  if (!id) return self.expect("onboard", id.error(), {ErrorCode::queue_full});
  if (*id) self.transfers.push_back(**id);
}

void Clients::cancel(Random& random) {
  State& self = *state_;
  if (self.transfers.empty()) return;
  const std::size_t i = random.below(self.transfers.size());
  const auto cancelled = self.manager.cancel_transfer(self.transfers[i]);
  if (!cancelled) self.expect("cancel", cancelled.error(), {ErrorCode::unknown_transfer});
  self.transfers.erase(self.transfers.begin() + static_cast<std::ptrdiff_t>(i));
}

void Clients::pin(Random& random) {
  State& self = *state_;
  const auto chain = self.some_chain(random);
  const auto names = self.names(chain);
  const auto ttl_ms = 1 + static_cast<std::uint32_t>(random.below(3'000));
  self.oracle.look();
  const TimePoint until = self.queue.now() + std::chrono::milliseconds(ttl_ms);
  const auto pinned =
      self.cache->pin({.keys = names, .ttl_ms = ttl_ms, .refresh_on_hit = random.once_in(3)});
  if (!pinned) return self.expect("pin", pinned.error(), {});
  self.oracle.look();
  const bool all = pinned->pin && pinned->budget + pinned->too_many == 0;
  self.oracle.pinned({.keys = chain, .until = until, .all = all});
}

void Clients::unpin(Random& random) {
  State& self = *state_;
  const auto chain = self.some_chain(random);
  self.oracle.may_go(chain);
  const auto unpinned = self.cache->unpin(self.names(chain), {});
  if (!unpinned) self.expect("unpin", unpinned.error(), {});
}

void Clients::prefetch(Random& random) {
  State& self = *state_;
  const auto chain = self.some_chain(random);
  const auto names = self.names(chain);
  self.oracle.held_in_this_step(chain);
  const auto begun = self.cache->prefetch(
      {.keys = names, .to = self.some_tier(random), .max_blocks = 1 + random.below(8)});
  if (!begun) {
    return self.expect("prefetch", begun.error(),
                       {ErrorCode::no_capacity, ErrorCode::queue_full, ErrorCode::impossible});
  }
  if (!begun->transfer) return;
  self.transfers.push_back(*begun->transfer);
  // A key that is erased while it is brought up must not come back.
  if (random.once_in(4)) erase_key(chain[random.below(chain.size())]);
}

void Clients::demote(Random& random) {
  State& self = *state_;
  const auto chain = self.some_chain(random);
  const auto names = self.names(chain);
  self.oracle.held_in_this_step(chain);
  const auto begun = self.cache->demote({.keys = names, .spares_shared = random.once_in(2)});
  if (!begun) return self.expect("demote", begun.error(), {});
  for (const TransferId id : begun->transfers) self.transfers.push_back(id);
}

}  // namespace cairn::sim
