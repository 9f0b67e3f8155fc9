#include "transport/store/remote_store.hpp"

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

StoreOutcome outcome_of(const Result<bool>& result) {
  if (result) return *result ? StoreOutcome::done : StoreOutcome::absent;
  const ErrorCode code = result.error().code;
  const bool is_unreached = code == ErrorCode::unavailable || code == ErrorCode::cancelled;
  return is_unreached ? StoreOutcome::failed : StoreOutcome::refused;
}

}  // namespace cairn
