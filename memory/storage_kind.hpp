#pragma once

#include <cstdint>
#include <string_view>

namespace cairn {

// What memory a region is made of. All regions of one layout are of one kind.
enum class StorageKind : std::uint8_t {
  system,   // pageable host memory
  pinned,   // host memory that devices copy from and to directly
  device,   // a device's own memory: the CPU may not touch it
  unified,  // memory that migrates between host and device
  disk,     // a file: reached by positional reads and writes only
};

std::string_view to_string(StorageKind kind);

// True where the CPU may read and write the bytes through a pointer.
constexpr bool is_host_accessible(StorageKind kind) {
  return kind == StorageKind::system || kind == StorageKind::pinned || kind == StorageKind::unified;
}

}  // namespace cairn
