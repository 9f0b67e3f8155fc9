#include "transport/io/positional_disk_io.hpp"

#include <limits.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <string>
#include <system_error>

#include "base/file_error.hpp"
#include "base/task_threads.hpp"

namespace cairn {
namespace {

static_assert(kMaxDiskVectors <= IOV_MAX);

struct Operation {
  const char* name;  // for error texts
  const FileCalls::Call& call;
};

std::int64_t result_of(ssize_t moved) { return moved < 0 ? -std::int64_t{errno} : moved; }

Error failure(const Operation& operation, FileCalls::Target at, int error_number) {
  return {file_error_code(error_number),
          std::string(operation.name) + " at offset " + std::to_string(at.offset_bytes) +
              " failed: " + std::generic_category().message(error_number)};
}

// Collects runs that are adjacent in the file, and moves all their bytes.
class AdjacentRuns {
 public:
  bool empty() const { return count_ == 0; }
  bool continued_by(const DiskRun& run) const {
    return count_ < kMaxDiskVectors && run.offset_bytes == at_.offset_bytes + size_bytes_;
  }
  void start(int fd, std::uint64_t offset_bytes) {
    at_ = {fd, offset_bytes};
    count_ = 0;
    size_bytes_ = 0;
  }
  void add(const DiskRun& run) {
    vectors_[count_++] = {run.memory, static_cast<std::size_t>(run.size_bytes)};
    size_bytes_ += run.size_bytes;
  }

  // Repeats after short I/O until all bytes are moved.
  Result<> move(const Operation& operation) {
    std::span<iovec> left(vectors_.data(), count_);
    while (size_bytes_ > 0) {
      const std::int64_t moved = operation.call(at_, left);
      if (moved == -EINTR) continue;
      if (moved < 0) return failure(operation, at_, static_cast<int>(-moved));
      if (moved == 0) {
        return Error{ErrorCode::io_error, std::string(operation.name) + " at offset " +
                                              std::to_string(at_.offset_bytes) + " ended with " +
                                              std::to_string(size_bytes_) +
                                              " bytes missing: end of file"};
      }
      const auto moved_bytes = static_cast<std::uint64_t>(moved);
      at_.offset_bytes += moved_bytes;
      size_bytes_ -= moved_bytes;
      left = drop_front(left, moved_bytes);
    }
    return {};
  }

 private:
  static std::span<iovec> drop_front(std::span<iovec> vectors, std::uint64_t size_bytes) {
    while (!vectors.empty() && size_bytes >= vectors.front().iov_len) {
      size_bytes -= vectors.front().iov_len;
      vectors = vectors.subspan(1);
    }
    if (size_bytes > 0) {
      iovec& first = vectors.front();
      first.iov_base = static_cast<std::byte*>(first.iov_base) + size_bytes;
      first.iov_len -= size_bytes;
    }
    return vectors;
  }

  FileCalls::Target at_;
  std::uint64_t size_bytes_ = 0;
  std::size_t count_ = 0;
  std::array<iovec, kMaxDiskVectors> vectors_;
};

class PositionalDiskIo final : public DiskIo {
 public:
  PositionalDiskIo(FileCalls calls, std::uint32_t threads)
      : calls_(std::move(calls)), threads_({.name = "disk", .threads = threads}) {}

  void submit(DiskCall call, Done done) override {
    threads_.post([this, call = std::move(call), done = std::move(done)]() mutable {
      const bool reads = call.kind == DiskCall::Kind::read;
      done(move_all({reads ? "read" : "write", reads ? calls_.read : calls_.write}, call.fd,
                    call.runs));
    });
  }

 private:
  static Result<> move_all(const Operation& operation, int fd, std::span<const DiskRun> runs) {
    AdjacentRuns adjacent;
    for (const DiskRun& run : runs) {
      if (run.size_bytes == 0) continue;
      if (adjacent.empty() || !adjacent.continued_by(run)) {
        CAIRN_TRY(adjacent.move(operation));
        adjacent.start(fd, run.offset_bytes);
      }
      adjacent.add(run);
    }
    return adjacent.move(operation);
  }

  const FileCalls calls_;
  TaskThreads threads_;  // last: its tasks use the calls
};

}  // namespace

FileCalls FileCalls::of_the_system() {
  return {.read =
              [](Target at, std::span<const iovec> vectors) {
                return result_of(::preadv(at.fd, vectors.data(), static_cast<int>(vectors.size()),
                                          static_cast<off_t>(at.offset_bytes)));
              },
          .write =
              [](Target at, std::span<const iovec> vectors) {
                return result_of(::pwritev(at.fd, vectors.data(), static_cast<int>(vectors.size()),
                                           static_cast<off_t>(at.offset_bytes)));
              }};
}

std::unique_ptr<DiskIo> make_positional_disk_io(FileCalls calls, std::uint32_t threads) {
  return std::make_unique<PositionalDiskIo>(std::move(calls), threads);
}

std::unique_ptr<DiskIo> make_positional_disk_io(std::uint32_t threads) {
  return make_positional_disk_io(FileCalls::of_the_system(), threads);
}

}  // namespace cairn
