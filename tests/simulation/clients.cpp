#include "tests/simulation/clients_state.hpp"

namespace cairn::sim {

Clients::Clients(Parts parts) : state_(std::make_shared<State>(std::move(parts))) {}

Clients::~Clients() {
  state_->over = true;
  for (const auto& held : state_->readers) held->reader.reset();
}

std::uint64_t Clients::waiting() const { return state_->waiting; }

void Clients::release(Random& random) {
  State& self = *state_;
  const auto lease = self.some_lease(random);
  if (lease == nullptr) return;
  const auto released = self.cache->release(lease->id);
  self.oracle.look();
  if (!self.alive(lease, released, "release")) return;
  if (!released) return self.expect("release", released.error(), {});
  self.forget(lease);
}

void Clients::renew(Random& random) {
  State& self = *state_;
  const auto lease = self.some_lease(random);
  if (lease == nullptr) return;
  const std::uint32_t lease_ms = State::some_lease_ms(random);
  const auto renewed = self.cache->renew(lease->id, lease_ms);
  self.oracle.look();
  if (!self.alive(lease, renewed, "renew")) return;
  if (!renewed) return self.expect("renew", renewed.error(), {});
  lease->end = self.queue.now() + std::chrono::milliseconds(lease_ms);
}

void Clients::let_go() {
  State& self = *state_;
  for (const auto& held : self.readers) {
    held->gone = true;
    held->reader.reset();
  }
  self.readers.clear();
  if (self.oracle.any_pinned()) self.unpin_all();
  while (!self.leases.empty()) {
    const auto lease = self.leases.back();
    const auto released = self.cache->release(lease->id);
    self.oracle.look();
    if (!self.alive(lease, released, "release")) continue;
    if (!released) self.expect("release", released.error(), {});
    self.forget(lease);
  }
}

}  // namespace cairn::sim
