#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

#include "base/result.hpp"

namespace cairn {

// What an order of eviction has learnt, beside a slot file as `PATH~learnt`, for the next start.
// The bytes are the order's own affair; a file that is not what was written is refused whole, and
// costs what was learnt only.

// 53 classes of 40 ages take 17 KB.
inline constexpr std::size_t kMaxLearntBytes = std::size_t{256} << 10U;

struct LearntFile {
  std::filesystem::path slot_file;
  std::uint64_t file_id = 0;  // of the slot file: another's is not taken
};

// Durably, in place of what was there; nothing to be kept removes it. REQUIRES: kMaxLearntBytes at
// most.
Result<> write_learnt(const LearntFile& file, std::span<const std::byte> learnt);
// not_found; checksum_mismatch: it is damaged, of another version or slot file, or too large;
// io_error.
Result<std::vector<std::byte>> read_learnt(const LearntFile& file);
void remove_learnt(const std::filesystem::path& slot_file);

}  // namespace cairn
