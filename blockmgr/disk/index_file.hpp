#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>

#include "base/result.hpp"

namespace cairn {

// What the files beside a slot file have in common: see SlotJournal.

inline constexpr std::array<char, 8> kLogMagic = {'C', 'A', 'I', 'R', 'N', 'L', 'O', 'G'};
inline constexpr std::array<char, 8> kCheckpointMagic = {'C', 'A', 'I', 'R', 'N', 'C', 'K', 'P'};

enum class LogEnding : std::uint64_t {
  open = 0,       // what came last is its last entry
  ran_full = 1,   // what came then is not in it
  continued = 2,  // another log follows it
};

// A checkpoint or a log begins with this; entries follow. Written last of a checkpoint, so that one
// without it is none.
struct IndexFileHead {
  std::array<char, 8> magic;
  std::uint64_t checksum;  // of what follows it, up to `ending`
  std::uint64_t version;
  std::uint64_t file_id;
  std::uint64_t num_slots;  // when it was begun; the slot file may have got more, or fewer, since
  std::uint64_t seed;
  std::uint64_t number;  // of the log; of a checkpoint: of the first log that counts beside it
  std::uint64_t record_bytes;  // of a checkpoint; of a log: the most that it may have
  LogEnding ending;            // of a log
  std::uint64_t boot;          // of a log: the machine's start in whose time it was begun
};
static_assert(sizeof(IndexFileHead) == 80);

// Of all that is in the head but the ending, which changes later.
void set_checksum(IndexFileHead& head);
// The head at the beginning of the bytes. nullopt unless it is whole, and of the same kind and slot
// file.
std::optional<IndexFileHead> checked_head(std::span<const std::byte> bytes,
                                          const IndexFileHead& expected);

// What errno says of that file.
Error index_file_failure(const std::filesystem::path& path, const char* what);
Result<> write_index_file(int fd, std::span<const std::byte> bytes, std::uint64_t at,
                          const std::filesystem::path& path);

}  // namespace cairn
