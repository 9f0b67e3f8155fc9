#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "blockmgr/index/types.hpp"

namespace cairn {

struct TransferBatch;

// The keys that transfers are bringing to a tier. Whoever asks for one of them waits for the copy
// that is under way: the prefix that many requests share is moved once, into one slot a block.
// Under the cache's lock.
class SingleFlight {
 public:
  struct Follower {
    std::shared_ptr<TransferBatch> batch;
    Tier from = Tier::disk;  // where it would have taken the block from
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
  // Null where nobody brings it. Valid until it has come or did not.
  Expected* find(const Place& place);
  // REQUIRES: nobody brings it.
  Expected& expect(const Place& place, std::shared_ptr<TransferBatch> leader);
  // It came, or did not: who waited for it.
  std::vector<Follower> end(const Place& place);

 private:
  std::map<Place, Expected> places_;
};

}  // namespace cairn
