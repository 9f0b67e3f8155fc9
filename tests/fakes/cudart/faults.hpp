#pragma once

#include <driver_types.h>

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>

namespace cairn::fakes {

// Plans which call fails, and records which devices are broken. Thread-safe.
class Faults {
 public:
  static constexpr std::uint64_t kEvery = UINT64_MAX;
  // The n-th call of that name from now on (1: the next) fails with `error`. 0: none; kEvery: all.
  struct Plan {
    std::string call;
    std::uint64_t n = 0;
    cudaError_t error = cudaSuccess;
  };
  void plan(Plan plan);
  void reset();

  // Counts a call of that name. Returns the error to fail it with, or cudaSuccess.
  cudaError_t next(std::string_view call);
  std::uint64_t calls(std::string_view call) const;
  std::uint64_t injected() const;

  // The first error breaks a device; later ones are its consequences.
  void break_device(int device, cudaError_t error);
  cudaError_t broken(int device) const;

 private:
  mutable std::mutex mutex_;
  std::map<std::string, std::uint64_t, std::less<>> calls_;
  Plan plan_;
  std::uint64_t fails_at_ = 0;
  std::uint64_t injected_ = 0;
  std::map<int, cudaError_t> broken_;
};

// Whether the error is sticky until the process ends, by CUDA's reference.
bool breaks_the_device(cudaError_t error);

}  // namespace cairn::fakes
