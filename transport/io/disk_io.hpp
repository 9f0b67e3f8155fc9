#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/mutex.hpp"
#include "base/result.hpp"
#include "base/unique_function.hpp"

namespace cairn {

struct DiskRun {
  std::byte* memory = nullptr;
  std::uint64_t offset_bytes = 0;
  std::uint64_t size_bytes = 0;
};

// Runs of one file, in one direction.
struct DiskCall {
  enum class Kind : std::uint8_t { read, write };
  Kind kind = Kind::read;
  int fd = -1;
  std::vector<DiskRun> runs;
};

// Reads and writes of files at positions, many at a time. A call moves every byte of every run or
// fails (io_error with the call, the offset and errno's words; no_capacity for a full disk): short
// I/O is continued or an error, never success. Thread-safe.
class DiskIo {
 public:
  using Done = UniqueFunction<void(Result<>)>;

  // REQUIRES: every call has ended.
  virtual ~DiskIo() = default;
  // `done` runs exactly once, when nothing of the call is under way any more: on a thread of the
  // engine's and never inside submit(). It must not block for long, since other calls' ends may
  // wait for it. The file and the memory must stay until then. Throws std::bad_alloc; the call is
  // then not begun and `done` will not run.
  virtual void submit(DiskCall call, Done done) = 0;

  // The same for several files, at least one: `done` runs when all have ended, with the first
  // error; inside this where there was no memory to begin any of them.
  void submit_all(std::vector<DiskCall> calls, Done done);

  // The same, and wait for all: what became of each.
  std::vector<Result<>> run_all(std::vector<DiskCall> calls);
  Result<> read(int fd, std::span<const DiskRun> runs);
  Result<> write(int fd, std::span<const DiskRun> runs);

  // Brings what calls that have ended wrote to a file past the disk's own cache. Blocks. io_error;
  // no_capacity.
  virtual Result<> flush(int fd);

  // Memory from and to which much will be moved: an engine may make that cheaper. What is moved,
  // and from where, does not depend on it. An error says why it could not, and changes nothing.
  virtual Result<> prepare(std::span<std::byte>) { return {}; }
  // REQUIRES: no call uses it any more. To be called before that memory is anything else's.
  virtual void forget(std::span<std::byte>) {}

 protected:
  // As Executor::wait(), for the end of a call.
  virtual void wait(Mutex& mutex, Condition& ended) { ended.wait(mutex); }
};

// Prepared as long as it lives.
class PreparedMemory {
 public:
  // Borrows both.
  static Result<PreparedMemory> of(DiskIo& disk, std::span<std::byte> memory) {
    CAIRN_TRY(disk.prepare(memory));
    return PreparedMemory(disk, memory);
  }
  PreparedMemory(PreparedMemory&& other) noexcept
      : disk_(std::exchange(other.disk_, nullptr)), memory_(other.memory_) {}
  PreparedMemory& operator=(PreparedMemory&&) = delete;
  ~PreparedMemory() {
    if (disk_ != nullptr) disk_->forget(memory_);
  }

 private:
  PreparedMemory(DiskIo& disk, std::span<std::byte> memory) : disk_(&disk), memory_(memory) {}
  DiskIo* disk_;
  std::span<std::byte> memory_;
};

// Calls that run on so many threads, each of which waits for the disk.
inline constexpr std::uint32_t kDiskThreads = 4;
std::unique_ptr<DiskIo> make_positional_disk_io(std::uint32_t threads = kDiskThreads);

}  // namespace cairn
