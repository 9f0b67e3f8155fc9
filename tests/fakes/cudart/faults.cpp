#include "tests/fakes/cudart/faults.hpp"

#include <algorithm>

namespace cairn::fakes {

void Faults::plan(Plan plan) {
  const std::lock_guard lock(mutex_);
  plan_ = std::move(plan);
  fails_at_ = plan_.n == 0 || plan_.n == kEvery ? plan_.n : calls_[plan_.call] + plan_.n;
}

void Faults::reset() {
  const std::lock_guard lock(mutex_);
  calls_.clear();
  plan_ = {};
  fails_at_ = 0;
  injected_ = 0;
  broken_.clear();
}

cudaError_t Faults::next(std::string_view call) {
  const std::lock_guard lock(mutex_);
  auto counted = calls_.find(call);
  if (counted == calls_.end()) counted = calls_.emplace(call, 0).first;
  const std::uint64_t number = ++counted->second;
  if (call != plan_.call || (number != fails_at_ && fails_at_ != kEvery)) return cudaSuccess;
  ++injected_;
  return plan_.error;
}

std::uint64_t Faults::calls(std::string_view call) const {
  const std::lock_guard lock(mutex_);
  const auto counted = calls_.find(call);
  return counted == calls_.end() ? 0 : counted->second;
}

std::uint64_t Faults::injected() const {
  const std::lock_guard lock(mutex_);
  return injected_;
}

void Faults::break_device(int device, cudaError_t error) {
  const std::lock_guard lock(mutex_);
  broken_.emplace(device, error);
}

cudaError_t Faults::broken(int device) const {
  const std::lock_guard lock(mutex_);
  const auto found = broken_.find(device);
  return found == broken_.end() ? cudaSuccess : found->second;
}

bool breaks_the_device(cudaError_t error) {
  constexpr cudaError_t kSticky[] = {
      cudaErrorECCUncorrectable,    cudaErrorNvlinkUncorrectable, cudaErrorContained,
      cudaErrorIllegalAddress,      cudaErrorLaunchTimeout,       cudaErrorAssert,
      cudaErrorHardwareStackError,  cudaErrorIllegalInstruction,  cudaErrorMisalignedAddress,
      cudaErrorInvalidAddressSpace, cudaErrorInvalidPc,           cudaErrorLaunchFailure,
      cudaErrorTensorMemoryLeak,    cudaErrorMpsClientTerminated, cudaErrorExternalDevice};
  return std::ranges::find(kSticky, error) != std::end(kSticky);
}

}  // namespace cairn::fakes
