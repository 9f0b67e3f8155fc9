#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>
#include <vector>

#include "base/result.hpp"

namespace cairn {

// A small file beside a slot file, as `PATH~NAME`, that is written and read as a whole. The cache
// can do without it, so a damaged one is refused, and only its contents are lost.
struct SideFile {
  std::filesystem::path slot_file;
  std::uint64_t file_id = 0;  // of the slot file; a file with another id is refused
};
struct SideFileKind {
  std::string_view name;
  std::array<char, 8> magic;
  std::uint64_t version = 1;
  std::size_t max_bytes = SIZE_MAX;  // a longer file is refused
};

// Replaces the file durably; removes it if there are no contents.
Result<> write_side_file(const SideFile& file, const SideFileKind& kind,
                         std::span<const std::byte> contents);
// Errors: not_found; checksum_mismatch, as damaged_side_file(), if the file is damaged, too large,
// or of another version or slot file; io_error.
Result<std::vector<std::byte>> read_side_file(const SideFile& file, const SideFileKind& kind);
Error damaged_side_file(const SideFile& file, const SideFileKind& kind);
// Also what an interrupted write has left.
void remove_side_file(const std::filesystem::path& slot_file, const SideFileKind& kind);

}  // namespace cairn
