#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "blockmgr/index/types.hpp"

namespace cairn {

struct TransferBatch;

// The keys that transfers are bringing to a tier. Another request for such a key waits for the copy
// in progress. So a prefix that many requests share is moved once, into one slot per block. Under
// the cache's lock.
class SingleFlight {
 public:
  struct Follower {
    std::shared_ptr<TransferBatch> batch;
    Tier from = Tier::disk;  // where it would have copied the block from
  };
  struct Place {
    BlockKey key;
    Tier to = Tier::device;
    friend std::strong_ordering operator<=>(const Place& a, const Place& b);
  };

  // A key on its way.
  struct Expected {
    std::shared_ptr<TransferBatch> leader;
    std::vector<Follower> followers;
  };
  // Null if no transfer is bringing the key. Valid until end().
  Expected* find(const Place& place);
  // REQUIRES: no transfer is bringing the key.
  Expected& expect(const Place& place, std::shared_ptr<TransferBatch> leader);
  // The key has arrived, or failed to. Returns its followers.
  std::vector<Follower> end(const Place& place);

 private:
  std::map<Place, Expected> places_;
};

}  // namespace cairn
