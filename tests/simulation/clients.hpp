#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/simulation/simulation_oracle.hpp"

namespace cairn::sim {

// Those who use a cache: each verb begins one use of it, whose answers come when the queue has them
// come. They go with the life of the server that they talk to; what comes after is not looked at.
class Clients {
 public:
  struct Parts {
    Queue& queue;
    Oracle& oracle;
    BlockManager& manager;
    std::shared_ptr<Cache> cache;
  };
  explicit Clients(Parts parts);
  // Nobody hears of anything any more; what they held is let go of.
  ~Clients();

  void allocate(Random& random);
  void write(Random& random);
  void commit(Random& random);
  void match(Random& random);
  void hold(Random& random);
  void read(Random& random);
  void read_prefix(Random& random);
  // Looks at bytes that a lease or a reader holds, and may let go of a reader.
  void look_at_held(Random& random);
  void release(Random& random);
  void renew(Random& random);
  void evict(Random& random);
  void erase(Random& random);
  void clear(Random& random);
  void transfer(Random& random);
  void onboard(Random& random);
  void cancel(Random& random);
  // Everything that they hold.
  void let_go();
  std::uint64_t waiting() const;  // answers that have not come

 private:
  struct State;
  const std::shared_ptr<State> state_;
};

}  // namespace cairn::sim
