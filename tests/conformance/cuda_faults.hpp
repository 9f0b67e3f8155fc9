#pragma once

#include <driver_types.h>

#include <cstdint>
#include <string>

namespace cairn::testing {

// The n-th call of that name fails with that error.
struct CudaFault {
  std::string call;
  std::uint64_t n = 0;
  cudaError_t error = cudaErrorInvalidValue;

  // For calls that are made endlessly: from n > `after` on, the next n is larger by n / `part`. The
  // number of event queries depends on the machine's speed, and every operation sets its device, so
  // late failures repeat earlier ones.
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
