#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <functional>
#include <memory>

#include "transport/io/disk_io.hpp"

namespace cairn {

// preadv(2) and pwritev(2), or what stands in for them: each returns how many bytes it moved, or
// the negated errno.
struct FileCalls {
  struct Target {
    int fd = -1;
    std::uint64_t offset_bytes = 0;
  };
  using Call = std::function<std::int64_t(Target, std::span<const iovec>)>;
  Call read;
  Call write;

  static FileCalls of_the_system();
};

// Runs that follow each other in the file, in the order given, are one call.
std::unique_ptr<DiskIo> make_positional_disk_io(FileCalls calls,
                                                std::uint32_t threads = kDiskThreads);

}  // namespace cairn
