#pragma once

#include <cstddef>
#include <filesystem>
#include <span>

#include "base/result.hpp"

namespace cairn {

// Makes the file hold these bytes, or leaves what it held: written beside, flushed, renamed, and
// the folder flushed, so that a crash or a power cut shows one of the two. no_capacity: the disk is
// full; io_error.
Result<> write_durably(const std::filesystem::path& path, std::span<const std::byte> bytes);

// The last part of it, for a file that was written and flushed elsewhere.
Result<> rename_durably(const std::filesystem::path& from, const std::filesystem::path& to);

// Removes the file for good; nothing where it is not there.
Result<> remove_durably(const std::filesystem::path& path);

}  // namespace cairn
