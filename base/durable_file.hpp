#pragma once

#include <cstddef>
#include <filesystem>
#include <span>

#include "base/result.hpp"

namespace cairn {

// Writes the file atomically and durably: writes a file beside it, flushes, renames, and flushes
// the folder. After a crash or power loss the file has either the old or the new content. Errors:
// no_capacity if the disk is full; io_error.
Result<> write_durably(const std::filesystem::path& path, std::span<const std::byte> bytes);

// Only renames and flushes the folder, for a file that is already written and flushed.
Result<> rename_durably(const std::filesystem::path& from, const std::filesystem::path& to);

// Removes the file durably. No-op if it does not exist.
Result<> remove_durably(const std::filesystem::path& path);

}  // namespace cairn
