#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "transport/io/disk_io.hpp"

namespace cairn {

struct UringOptions {
  std::uint32_t depth = 128;               // pieces in progress; others wait in turn
  std::uint64_t piece_bytes = 1ull << 20;  // longer runs are split; a multiple of 4096
  // prepare() registers memory with the kernel, which then pins its pages once instead of per
  // piece. Error: unavailable if the kernel refuses, as it does beyond RLIMIT_MEMLOCK.
  bool register_buffers = true;
  // For tests: gets each piece's result (bytes, or a negated errno) and may replace it.
  std::function<std::int32_t(std::int32_t)> ended;
};

// Uses io_uring. Consecutive runs that are also adjacent in the file share a piece, up to its size.
// Error: unavailable, with the reason, if the kernel refuses io_uring or this build lacks it.
Result<std::unique_ptr<DiskIo>> make_uring_disk_io(UringOptions options);

}  // namespace cairn
