#pragma once

#include <cstdint>

namespace cairn {

// Of the process's file descriptors, those that connections leave alone, or half of them where
// there are fewer: the listening sockets, the threads' own, up to three files of each disk tier,
// shared memory, a snapshot being read, open files that engines pass. Without it idle connections
// would take the last one before anybody is told 503, and no cache could be made any more.
// Six for each of the 64 caches there may be, and 128 for the rest.
inline constexpr std::uint64_t kReservedFiles = 512;

// The connections that so many descriptors allow, at most as many as wanted and at least one.
std::uint32_t connections_within(std::uint64_t max_files, std::uint32_t wanted);

// Lets the process open as many files as its hard limit says, and answers how many that are. The
// soft limit is kept low for programs that use select(), of which this is none.
std::uint64_t raise_file_limit();

}  // namespace cairn
