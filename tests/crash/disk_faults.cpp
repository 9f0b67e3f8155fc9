// Preloaded between a server and its slot files (LD_PRELOAD; with `disk.engine` threads). Fails
// calls, and records what a disk with a write cache may lose until a flush. Only for files below
// CAIRN_FAULTS_UNDER.
//
//   CAIRN_FAULTS_READ_EVERY, CAIRN_FAULTS_WRITE_EVERY  every n-th call fails; 0 or unset: none
//   CAIRN_FAULTS_READ_BYTES_PER_S  the speed of the disk for all reads; 0 or unset: its own
//   CAIRN_FAULTS_ERRNO  the error number (default EIO); a failed write has moved half of its bytes
//   CAIRN_FAULTS_UNDO   a file with the bytes before each write: u32 length of the path (highest
//                       bit: the file was flushed), u32 size, u64 offset, the path, the bytes
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace {

constexpr std::uint64_t kPage = 4096;
constexpr std::uint32_t kFlushed = 0x80000000;

template <class Function>
Function* real(const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}

std::string_view setting(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}
std::uint64_t number(const char* name) {
  return std::strtoull(std::string(setting(name)).c_str(), nullptr, 10);
}

// The file's path; empty if the file is not tracked.
std::string tracked(int fd) {
  static const std::string under(setting("CAIRN_FAULTS_UNDER"));
  std::array<char, 4096> path;
  const auto link = "/proc/self/fd/" + std::to_string(fd);
  const ::ssize_t size = ::readlink(link.c_str(), path.data(), path.size());
  std::string found(path.data(), size > 0 ? static_cast<std::size_t>(size) : 0);
  return !under.empty() && found.starts_with(under) ? found : "";
}

bool fails(const char* every, std::atomic<std::uint64_t>& calls) {
  const std::uint64_t n = number(every);
  return n > 0 && ++calls % n == 0;
}
int error_number() {
  const auto given = static_cast<int>(number("CAIRN_FAULTS_ERRNO"));
  return given == 0 ? EIO : given;
}

// One read after the other, each for as long as a disk of the given speed needs.
void take_as_long_as_a_slow_disk(std::uint64_t size_bytes) {
  using Clock = std::chrono::steady_clock;
  static std::mutex mutex;
  static Clock::time_point free_at;
  const std::uint64_t bytes_per_s = number("CAIRN_FAULTS_READ_BYTES_PER_S");
  if (bytes_per_s == 0) return;
  const std::chrono::nanoseconds takes(size_bytes * 1'000'000'000 / bytes_per_s);
  Clock::time_point done;
  {
    const std::unique_lock lock(mutex);
    done = free_at = std::max(free_at, Clock::now()) + takes;
  }
  std::this_thread::sleep_until(done);
}

std::mutex undo_mutex;

struct Range {
  std::uint64_t offset_bytes;
  std::uint64_t size_bytes;
};

// Writes one record in a single call. The process is only killed between calls, so the record is
// complete.
void keep(const std::string& path, std::uint32_t kind, Range range, const void* bytes) {
  static const int fd = ::open(std::string(setting("CAIRN_FAULTS_UNDO")).c_str(),
                               O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  std::string head(16, '\0');
  const std::uint32_t sizes[] = {static_cast<std::uint32_t>(path.size()) | kind,
                                 static_cast<std::uint32_t>(range.size_bytes)};
  __builtin_memcpy(head.data(), sizes, 8);
  __builtin_memcpy(head.data() + 8, &range.offset_bytes, 8);
  head += path;
  const iovec parts[] = {{head.data(), head.size()},
                         {const_cast<void*>(bytes), bytes == nullptr ? 0 : range.size_bytes}};
  static_cast<void>(::writev(fd, parts, 2) == 0);
}

void keep_what_is_there(int fd, const std::string& path, Range range) {
  // Aligned for direct I/O; the file consists of whole pages.
  const std::uint64_t begin = range.offset_bytes / kPage * kPage;
  const std::uint64_t end = (range.offset_bytes + range.size_bytes + kPage - 1) / kPage * kPage;
  void* const memory = std::aligned_alloc(kPage, end - begin);
  if (::pread(fd, memory, end - begin, static_cast<off_t>(begin)) ==
      static_cast<::ssize_t>(end - begin)) {
    keep(path, 0, {begin, end - begin}, memory);
  }
  std::free(memory);
}

std::uint64_t bytes_of(const iovec* vectors, int count) {
  std::uint64_t size = 0;
  for (int i = 0; i < count; ++i) size += vectors[i].iov_len;
  return size;
}

int flush(int fd, const char* name) {
  const std::string path = tracked(fd);
  const std::unique_lock lock(undo_mutex);
  const int result = real<int(int)>(name)(fd);
  if (result == 0 && !path.empty() && !setting("CAIRN_FAULTS_UNDO").empty()) {
    keep(path, kFlushed, {0, 0}, nullptr);
  }
  return result;
}

}  // namespace

extern "C" {

::ssize_t preadv(int fd, const iovec* vectors, int count, off_t offset) {
  static std::atomic<std::uint64_t> calls = 0;
  if (!tracked(fd).empty()) {
    if (fails("CAIRN_FAULTS_READ_EVERY", calls)) {
      errno = error_number();
      return -1;
    }
    take_as_long_as_a_slow_disk(bytes_of(vectors, count));
  }
  return real<::ssize_t(int, const iovec*, int, off_t)>("preadv")(fd, vectors, count, offset);
}

::ssize_t pwritev(int fd, const iovec* vectors, int count, off_t offset) {
  static std::atomic<std::uint64_t> calls = 0;
  const auto write = real<::ssize_t(int, const iovec*, int, off_t)>("pwritev");
  const std::string path = tracked(fd);
  if (path.empty()) return write(fd, vectors, count, offset);
  if (fails("CAIRN_FAULTS_WRITE_EVERY", calls)) {
    if (count > 1) static_cast<void>(write(fd, vectors, count / 2, offset));
    errno = error_number();
    return -1;
  }
  if (setting("CAIRN_FAULTS_UNDO").empty()) return write(fd, vectors, count, offset);
  const std::unique_lock lock(undo_mutex);
  keep_what_is_there(fd, path, {static_cast<std::uint64_t>(offset), bytes_of(vectors, count)});
  return write(fd, vectors, count, offset);
}

int fsync(int fd) { return flush(fd, "fsync"); }
int fdatasync(int fd) { return flush(fd, "fdatasync"); }

}  // extern "C"
