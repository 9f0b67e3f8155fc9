#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <vector>

#include "base/result.hpp"
#include "blockmgr/disk/side_file.hpp"

namespace cairn {

// Stores the learnt state of an eviction order beside a slot file, as `PATH~learnt`, for the next
// start. The order defines the bytes. A damaged file is refused as a whole, and only the learnt
// state is lost.

// 53 classes of 40 ages take 17 KB.
inline constexpr std::size_t kMaxLearntBytes = std::size_t{256} << 10U;

// Replaces the file durably; removes it if `learnt` is empty. REQUIRES: at most kMaxLearntBytes.
Result<> write_learnt(const SideFile& file, std::span<const std::byte> learnt);
// Errors: not_found; checksum_mismatch if the file is damaged, too large, or of another version or
// slot file; io_error.
Result<std::vector<std::byte>> read_learnt(const SideFile& file);
void remove_learnt(const std::filesystem::path& slot_file);

}  // namespace cairn
