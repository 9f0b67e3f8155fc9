#pragma once

#include <cstdint>
#include <memory>

#include "memory/device_runtime.hpp"

namespace cairn {

struct HostRuntimeOptions {
  std::uint32_t devices = 1;       // 1 to 64
  std::uint64_t device_bytes = 0;  // memory of each; 0: no limit but the machine's
};
Result<std::unique_ptr<DeviceRuntime>> make_host_runtime(HostRuntimeOptions options);

}  // namespace cairn
