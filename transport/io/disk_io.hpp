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

// Linux limits the buffers of one call or operation (IOV_MAX).
inline constexpr std::size_t kMaxDiskVectors = 1024;

struct DiskRun {
  std::byte* memory = nullptr;
  std::uint64_t offset_bytes = 0;
  std::uint64_t size_bytes = 0;
};

// Runs of one file, all in the same direction.
struct DiskCall {
  enum class Kind : std::uint8_t { read, write };
  Kind kind = Kind::read;
  int fd = -1;
  std::vector<DiskRun> runs;
};

struct DiskRange {
  std::uint64_t offset_bytes = 0;
  std::uint64_t size_bytes = 0;
};
// Gives the pages of that range back to the file system; reads find zeros there. It may lie past
// the end of the file. Blocks until direct I/O that is under way on the file has ended: file
// systems wait for it. Errors: io_error; not_implemented if the file system has no holes.
Result<> punch_hole(int fd, DiskRange range);

// Asynchronous reads and writes at file positions. A call moves every byte of every run or fails.
// Short I/O is continued or becomes an error, never success. Errors: io_error, with the call, the
// offset and the errno text; no_capacity if the disk is full. Thread-safe.
class DiskIo {
 public:
  using Done = UniqueFunction<void(Result<>)>;

  // REQUIRES: every call has ended.
  virtual ~DiskIo() = default;
  // Starts a call. `done` runs exactly once, when nothing of the call is in progress any more, on a
  // thread of the implementation and never inside submit(). It must not block for long: other calls
  // may wait for that thread. The file and the memory must live until then. Throws std::bad_alloc;
  // then the call has not started and `done` will not run.
  virtual void submit(DiskCall call, Done done) = 0;

  // Starts calls on several files, at least one. `done` runs when all have ended, with the first
  // error. It runs inside submit_all() if no call could start for lack of memory.
  void submit_all(std::vector<DiskCall> calls, Done done);

  // Runs the calls and waits for all. Returns one result per call.
  std::vector<Result<>> run_all(std::vector<DiskCall> calls);
  Result<> read(int fd, std::span<const DiskRun> runs);
  Result<> write(int fd, std::span<const DiskRun> runs);

  // Writes the data of completed calls past the disk's cache. Blocks. Errors: io_error,
  // no_capacity.
  virtual Result<> flush(int fd);
  // As punch_hole().
  virtual Result<> punch(int fd, DiskRange range) { return punch_hole(fd, range); }

  // Announces memory that many calls will use, so that the implementation can make them cheaper.
  // Calls work without it. After an error nothing has changed.
  virtual Result<> prepare(std::span<std::byte>) { return {}; }
  // Undoes prepare(). Call it before the memory is used for anything else. REQUIRES: no call uses
  // the memory any more.
  virtual void forget(std::span<std::byte>) {}

 protected:
  // Waits for the end of a call, as Executor::wait().
  virtual void wait(Mutex& mutex, Condition& ended) { ended.wait(mutex); }
};

// Keeps memory prepared while it lives.
class PreparedMemory {
 public:
  // Borrows both; they must outlive it.
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

// Number of threads, each of which blocks on one call at a time.
inline constexpr std::uint32_t kDiskThreads = 4;
std::unique_ptr<DiskIo> make_positional_disk_io(std::uint32_t threads = kDiskThreads);

}  // namespace cairn
