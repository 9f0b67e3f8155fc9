#pragma once

#include <driver_types.h>

#include <cstdint>
#include <string>

namespace cairn::testing {

// The n-th call of that name fails.
struct CudaFault {
  std::string call;
  std::uint64_t n = 0;
  cudaError_t error = cudaErrorInvalidValue;

  // After so many of a call that is made endlessly, only each n / `part` of them fails. Events are
  // asked for as often as the machine has time to, and every operation sets its device: far down
  // those runs what fails is the same again.
  struct Thinning {
    std::uint64_t after = 0;
    std::uint64_t part = 1;
  };
  std::uint64_t next(Thinning thinning) const {
    const bool endless =
        call == "cudaEventQuery" || call == "cudaStreamQuery" || call == "cudaSetDevice";
    return n + (endless && n > thinning.after ? n / thinning.part : 1);
  }
  std::string text() const {
    return call + " number " + std::to_string(n) + " fails; the seed is the number";
  }
};

}  // namespace cairn::testing
