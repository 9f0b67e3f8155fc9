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

// The label before a slot file's slots, enough to reuse its blocks if nothing else describes the
// cache. It is stored twice, one page each, so that one copy survives a damaged page or an
// interrupted write.
inline constexpr std::uint64_t kSlotFileLabelBytes = 2 * 4096;  // offset of the first slot
// The room in a page beside the label's own fields.
inline constexpr std::size_t kMaxDescriptionBytes = 3'928;
inline constexpr std::size_t kMaxOwnerBytes = 64;
// The first bytes of each page.
inline constexpr std::array<char, 8> kSlotFileMagic = {'C', 'A', 'I', 'R', 'N', 'D', 'S', 'K'};

struct SlotFileLabel {
  std::uint64_t file_id = 0;  // the same in all files of the tier
  std::uint32_t file_number = 0;
  std::uint32_t file_count = 1;
  std::string owner = {};   // the cache's name, at most kMaxOwnerBytes
  LayoutConfig shape = {};  // num_blocks: slots in all files; alignment is not stored
  // Of the owner, if blocks of several shapes share the slots; 0: all are of `shape`.
  std::uint64_t shapes_hash = 0;
  std::string description = {};  // any text of the owner; at most kMaxDescriptionBytes
};

struct FoundLabel {
  SlotFileLabel label;
  bool damaged = false;  // one of the two pages is damaged
  bool differs = false;  // both are intact but differ; the first was written last
};

// Reads the label of a slot file. nullopt if the path has no file, or one truncated within its
// labels. Errors: state_conflict for any other file; io_error.
Result<std::optional<FoundLabel>> find_slot_file_label(const std::filesystem::path& path);

// Writes both pages in turn and flushes each. `path` is for error texts. Errors: impossible if the
// description is too long; io_error; no_capacity.
Result<> write_slot_file_label(int fd, const SlotFileLabel& label,
                               const std::filesystem::path& path);

std::string shape_text(const SlotFileLabel& label);

// The error of a failed call on a slot file, from errno.
Error slot_file_failure(const std::filesystem::path& path, const std::string& what);
// A state_conflict. The file stays unchanged.
Error slot_file_conflict(const std::filesystem::path& path, const std::string& why);

}  // namespace cairn
