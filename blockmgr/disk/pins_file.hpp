#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.hpp"
#include "blockmgr/disk/side_file.hpp"

namespace cairn {

// Unguessable. Written as 32 hex digits.
using PinId = std::array<std::byte, 16>;

// A client's pin, for the next start.
struct PinRecord {
  struct Key {
    std::string bytes;
    std::uint8_t kv_group = 0;
    friend bool operator==(const Key&, const Key&) = default;
  };
  PinId id{};
  std::optional<std::string> holder = {};  // the token; nullopt: none was needed
  std::string session = {};
  std::int64_t expires_at_unix_ms = 0;
  std::uint32_t ttl_ms = 0;
  bool refresh_on_hit = false;
  std::vector<Key> keys = {};

  friend bool operator==(const PinRecord&, const PinRecord&) = default;
};

// Stores the pins of a cache beside its slot file, as `PATH~pins`. A damaged file is refused as a
// whole: the blocks are there, and only their pins are lost.

// Replaces the file durably; removes it if there are no pins.
Result<> write_pins(const SideFile& file, std::span<const PinRecord> pins);
// Errors: not_found; checksum_mismatch if the file is damaged, or of another version or slot file;
// io_error.
Result<std::vector<PinRecord>> read_pins(const SideFile& file);
void remove_pins(const std::filesystem::path& slot_file);

}  // namespace cairn
