#include "blockmgr/transfer/single_flight.hpp"

#include <algorithm>
#include <utility>

#include "base/assert.hpp"

namespace cairn {

std::strong_ordering operator<=>(const SingleFlight::Place& a, const SingleFlight::Place& b) {
  if (a.to != b.to) return a.to <=> b.to;
  return a.key <=> b.key;
}

SingleFlight::Expected* SingleFlight::find(const Place& place) {
  const auto at = places_.find(place);
  return at == places_.end() ? nullptr : &at->second;
}

SingleFlight::Expected& SingleFlight::expect(const Place& place,
                                             std::shared_ptr<TransferBatch> leader) {
  const auto [at, added] = places_.try_emplace(place, Expected{std::move(leader), {}});
  CAIRN_ASSERT(added, "followers of the first transfer would be notified by the second");
  return at->second;
}

std::vector<SingleFlight::Follower> SingleFlight::end(const Place& place) {
  auto ended = places_.extract(place);
  return ended ? std::move(ended.mapped().followers) : std::vector<Follower>();
}

}  // namespace cairn
