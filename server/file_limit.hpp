#pragma once

#include <cstdint>

namespace cairn {

// File descriptors that connections may not use; at most half of all. They are for listening
// sockets, threads, up to three files per disk tier, shared memory, a snapshot being read and
// connections above the limit. Otherwise idle connections could use up all descriptors: clients
// would not get a 503, and no cache could be made. Six for each of at most 64 caches, and 256 for
// the rest.
inline constexpr std::uint64_t kReservedFiles = 640;

// How much the HTTP side may have open.
struct HttpFiles {
  std::uint32_t connections = 0;
  std::uint32_t unix_connections = 0;
  std::uint32_t passed_files = 0;
};
// Reduces `wanted` to what `max_files` descriptors allow, but leaves a few of each. Unix
// connections and the files passed over them get at most an eighth each.
HttpFiles http_files_within(std::uint64_t max_files, const HttpFiles& wanted);

// Raises the soft limit of open files to the hard limit. Returns the limit now in force. The soft
// limit is low for programs that use select(); this one does not.
std::uint64_t raise_file_limit();

}  // namespace cairn
