#pragma once

#include <memory>

#include "memory/device_runtime.hpp"

namespace cairn {

// A stream of the host runtime: a thread that runs its operations in order, started by the first of
// them. Copies are plain memcpy, which cannot fail, so the events of such a stream never fail.
// `devices` is the number of the runtime's devices, for checking a prefetch.
std::unique_ptr<Stream> make_host_stream(int devices);

}  // namespace cairn
