#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "blockmgr/remote_tier/remote_tier.hpp"
#include "tests/simulation/simulation_oracle.hpp"

namespace cairn::sim {

// Clients of a cache. Each verb begins one call, which ends when the queue says so. The clients end
// with their run of the server; they ignore later results.
class Clients {
 public:
  struct Parts {
    Queue& queue;
    Oracle& oracle;
    BlockManager& manager;
    std::shared_ptr<Cache> cache;
    std::shared_ptr<RemoteTier> remote_tier = {};  // null: the cache has none
  };
  explicit Clients(Parts parts);
  // Releases readers and ignores later results.
  ~Clients();

  void allocate(Random& random);
  void write(Random& random);
  void commit(Random& random);
  void match(Random& random);
  void match_groups(Random& random);
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
  void pin(Random& random);
  void unpin(Random& random);
  void prefetch(Random& random);
  void demote(Random& random);
  void share(Random& random);
  void fetch(Random& random);
  // Releases all leases and readers.
  void let_go();
  std::uint64_t waiting() const;  // calls that have not ended

 private:
  struct State;
  class Coming;
  void erase_key(KeyNumber key);

  const std::shared_ptr<State> state_;
};

}  // namespace cairn::sim
