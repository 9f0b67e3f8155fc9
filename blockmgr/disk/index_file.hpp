#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>

#include "base/result.hpp"

namespace cairn {

// The common parts of the files beside a slot file: see SlotJournal.

inline constexpr std::array<char, 8> kLogMagic = {'C', 'A', 'I', 'R', 'N', 'L', 'O', 'G'};
inline constexpr std::array<char, 8> kCheckpointMagic = {'C', 'A', 'I', 'R', 'N', 'C', 'K', 'P'};

enum class LogEnding : std::uint64_t {
  open = 0,       // it ends with its last entry
  ran_full = 1,   // later entries are missing
  continued = 2,  // another log follows it
};

// The head of a checkpoint or a log; entries follow. A checkpoint's head is written last, so a
// checkpoint without a valid one is unfinished.
struct IndexFileHead {
  std::array<char, 8> magic;
  std::uint64_t checksum;  // of the fields between it and `ending`
  std::uint64_t version;
  std::uint64_t file_id;
  std::uint64_t num_slots;  // at its creation; the slot file may have been resized since
  std::uint64_t seed;
  std::uint64_t number;        // log: its own; checkpoint: the first log to read after it
  std::uint64_t record_bytes;  // checkpoint: its entries' bytes; log: the maximum
  LogEnding ending;            // logs only
  std::uint64_t boot;          // logs only: identifies the machine's boot in which it was started
};
static_assert(sizeof(IndexFileHead) == 80);

// Sets the version and the checksum, which does not cover `ending`: that changes later.
void set_checksum(IndexFileHead& head);
// Returns the head at the start of the bytes. nullopt unless it is intact, and has the kind and the
// slot file of `expected`.
std::optional<IndexFileHead> checked_head(std::span<const std::byte> bytes,
                                          const IndexFileHead& expected);

// Returns the error in errno, for this file.
Error index_file_failure(const std::filesystem::path& path, const char* what);
Result<> write_index_file(int fd, std::span<const std::byte> bytes, std::uint64_t at,
                          const std::filesystem::path& path);

}  // namespace cairn
