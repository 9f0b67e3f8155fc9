#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace cairn {

// The kind of a region's memory. All regions of one layout have one kind.
enum class StorageKind : std::uint8_t {
  system,   // pageable host memory
  pinned,   // host memory that devices copy from and to directly
  device,   // a device's memory: the CPU may not touch it
  unified,  // memory that migrates between host and device
  disk,     // a file: accessed by positional reads and writes only
};

inline constexpr std::size_t kNumStorageKinds = 5;
inline constexpr std::array<StorageKind, kNumStorageKinds> kStorageKinds = {
    StorageKind::system, StorageKind::pinned, StorageKind::device, StorageKind::unified,
    StorageKind::disk};

std::string_view to_string(StorageKind kind);

// Host memory, which the CPU and disks read and write in place.
constexpr bool is_host_memory(StorageKind kind) {
  return kind == StorageKind::system || kind == StorageKind::pinned;
}

// Memory of a device; its bytes are exchanged by copies on its streams. The CPU could also touch
// unified memory. But each touch takes a page away from the device, and a disk that writes past the
// CPU would write to the page's former place.
constexpr bool is_on_device(StorageKind kind) {
  return kind == StorageKind::device || kind == StorageKind::unified;
}

}  // namespace cairn
