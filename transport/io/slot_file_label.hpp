#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.hpp"
#include "layouts/geometry.hpp"

namespace cairn {

// What a slot file says of itself in front of its slots: enough to take its blocks into use again
// where nothing else tells of the cache. It stands there twice, a page each, so that a damaged page
// or a write that was cut leaves one that is whole.
inline constexpr std::uint64_t kSlotFileLabelBytes = 2 * 4096;  // where the first slot begins
// What a page has room for beside the label's own fields.
inline constexpr std::size_t kMaxDescriptionBytes = 3'936;
inline constexpr std::size_t kMaxOwnerBytes = 64;
// What each page begins with.
inline constexpr std::array<char, 8> kSlotFileMagic = {'C', 'A', 'I', 'R', 'N', 'D', 'S', 'K'};

struct SlotFileLabel {
  std::uint64_t file_id = 0;  // of all files of the tier
  std::uint32_t file_number = 0;
  std::uint32_t file_count = 1;
  std::string owner = {};        // the cache, at most kMaxOwnerBytes
  LayoutConfig shape = {};       // num_blocks: slots in all files; without the alignment
  std::string description = {};  // whatever the owner keeps here; at most kMaxDescriptionBytes
};

struct FoundLabel {
  SlotFileLabel label;
  bool damaged = false;  // one of the two pages is not whole
  bool differs = false;  // both are, and do not say the same: the first was written last
};

// What is at the path: nothing (also where a file was cut off within its labels), or the label of a
// slot file. state_conflict for every other file; io_error.
Result<std::optional<FoundLabel>> find_slot_file_label(const std::filesystem::path& path);

// Both pages, one after the other, each flushed. `path` is for the error. impossible where the
// description is too long; io_error; no_capacity.
Result<> write_slot_file_label(int fd, const SlotFileLabel& label,
                               const std::filesystem::path& path);

std::string shape_text(const SlotFileLabel& label);

// How a call on a slot file failed, by errno.
Error slot_file_failure(const std::filesystem::path& path, const std::string& what);
// state_conflict: the file is left as it is.
Error slot_file_conflict(const std::filesystem::path& path, const std::string& why);

}  // namespace cairn
