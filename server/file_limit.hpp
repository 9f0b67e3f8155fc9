#pragma once

#include <cstdint>

namespace cairn {

// Of the process's file descriptors, those that connections leave alone, or half of them where
// there are fewer: the listening sockets, the threads' own, up to three files of each disk tier,
// shared memory, a snapshot being read, connections beyond the limit. Without it idle connections
// would take the last one before anybody is told 503, and no cache could be made any more.
// Six for each of the 64 caches there may be, and 256 for the rest.
inline constexpr std::uint64_t kReservedFiles = 640;

// What the HTTP side may have open.
struct HttpFiles {
  std::uint32_t connections = 0;
  std::uint32_t unix_connections = 0;
  std::uint32_t passed_files = 0;
};
// As much of what is wanted as so many descriptors allow, and a little of each. The Unix socket's
// connections, and the files that come over it, take an eighth each at the most.
HttpFiles http_files_within(std::uint64_t max_files, const HttpFiles& wanted);

// Lets the process open as many files as its hard limit says, and answers how many that are. The
// soft limit is kept low for programs that use select(), of which this is none.
std::uint64_t raise_file_limit();

}  // namespace cairn
