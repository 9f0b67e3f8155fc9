#pragma once

#include <memory>

#include "memory/device_runtime.hpp"

namespace cairn::conformance {

// Holds a stream at a point until opened. So a test sees the state while work is under way, without
// a guess at the work's duration.
class StreamGate {
 public:
  virtual ~StreamGate() = default;
  virtual void hold(Stream& stream) = 0;
  virtual void open() = 0;
};

// For streams that are threads of this process: they touch a page without access, and the fault's
// handler waits. One gate at a time.
std::unique_ptr<StreamGate> make_page_gate();

// For CUDA streams; null if the program is built without the toolkit.
std::unique_ptr<StreamGate> make_cuda_gate();

}  // namespace cairn::conformance
