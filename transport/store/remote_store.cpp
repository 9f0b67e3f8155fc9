#include "transport/store/remote_store.hpp"

#include <algorithm>
#include <iterator>

namespace cairn {

std::string_view to_string(StoreOperation operation) {
  constexpr std::array<std::string_view, kNumStoreOperations> kWords = {
      "probe", "read", "write", "touch", "announce", "withdraw"};
  return kWords[static_cast<std::size_t>(operation)];
}

std::string_view to_string(StoreOutcome outcome) {
  constexpr std::array<std::string_view, kNumStoreOutcomes> kWords = {"done", "absent", "refused",
                                                                      "failed"};
  return kWords[static_cast<std::size_t>(outcome)];
}

void RemoteStoreStats::add(RemoteStoreStats other) {
  for (std::size_t i = 0; i < kNumStoreOperations; ++i) {
    Operation& mine = operations[i];
    const Operation& more = other.operations[i];
    for (std::size_t j = 0; j < kNumStoreOutcomes; ++j) mine.outcomes[j] += more.outcomes[j];
    mine.bytes += more.bytes;
    for (std::size_t j = 0; j < mine.durations.counts.size(); ++j) {
      mine.durations.counts[j] += more.durations.counts[j];
    }
    mine.durations.sum += more.durations.sum;
  }
  std::ranges::move(other.nodes, std::back_inserter(nodes));
  std::ranges::move(other.by_node, std::back_inserter(by_node));
  is_ready &= other.is_ready;
  if (other.bucket) bucket = other.bucket;  // there is one at most
}

StoreOutcome outcome_of(const Result<bool>& result) {
  if (result) return *result ? StoreOutcome::done : StoreOutcome::absent;
  const ErrorCode code = result.error().code;
  const bool is_unreached = code == ErrorCode::unavailable || code == ErrorCode::cancelled;
  return is_unreached ? StoreOutcome::failed : StoreOutcome::refused;
}

}  // namespace cairn
