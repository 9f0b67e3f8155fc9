#include "memory/device_runtime.hpp"

#include <algorithm>

#include "base/assert.hpp"

namespace cairn {

Result<> Stream::synchronize() {
  auto event = record();
  if (!event) return std::move(event).error();
  return (*event)->wait();
}

std::string_view to_string(CopyForm form) {
  switch (form) {
    case CopyForm::loop:
      return "loop";
    case CopyForm::batch:
      return "batch";
    case CopyForm::rows:
      return "rows";
    case CopyForm::kernel:
      return "kernel";
  }
  invariant_broken("CopyForm", "a value outside the enumeration");
}

std::string_view to_string(MemoryVisibility visibility) {
  switch (visibility) {
    case MemoryVisibility::system:
      return "system";
    case MemoryVisibility::device:
      return "device";
    case MemoryVisibility::explicit_dma:
      return "explicit_dma";
  }
  invariant_broken("MemoryVisibility", "a value outside the enumeration");
}

std::string uuid_of(const DeviceRuntime& runtime, int device_id) {
  const auto devices = runtime.devices();
  const auto found = std::ranges::find(devices, device_id, &DeviceInfo::id);
  return found == devices.end() ? std::string() : found->uuid;
}

}  // namespace cairn
