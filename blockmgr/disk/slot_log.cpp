#include "blockmgr/disk/slot_log.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "transport/io/slot_file.hpp"

namespace cairn {
namespace {

namespace fs = std::filesystem;

// Suffix of a log beside the slot file; its number follows.
constexpr std::string_view kLog = "log.";

}  // namespace

Result<std::shared_ptr<SlotLog>> SlotLog::make(const fs::path& path, const IndexFileHead& head,
                                               std::uint64_t size_bytes) {
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (fd < 0) return index_file_failure(path, "made");
  const auto fail = [&](const char* what) -> Error {
    Error error = index_file_failure(path, what);
    ::close(fd);
    ::unlink(path.c_str());
    return error;
  };
  // Reserves all bytes before mapping: otherwise a full disk would raise a signal instead of an
  // error.
  if (const int error = ::posix_fallocate(fd, 0, static_cast<off_t>(size_bytes)); error != 0) {
    errno = error;
    return fail("reserved");
  }
  void* const data =
      ::mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
  if (data == MAP_FAILED) return fail("mapped");
  ::close(fd);
  std::memcpy(data, &head, sizeof(head));
  return std::shared_ptr<SlotLog>(new SlotLog(static_cast<std::byte*>(data), size_bytes, head));
}

SlotLog::~SlotLog() { ::munmap(data_, size_); }

void SlotLog::say(LogEnding ending) { reinterpret_cast<IndexFileHead*>(data_)->ending = ending; }

void SlotLog::note(const JournalEntry& entry) {
  if (full_ || !fits(entry)) {
    // The next start reads the slots' headers.
    if (!std::exchange(full_, true)) say(LogEnding::ran_full);
    return;
  }
  const std::size_t bytes = encoded_bytes(entry);
  encode(entry, head_.seed, {data_ + used_, bytes});
  used_ += bytes;
}

void SlotLog::say_continued() {
  if (!full_) say(LogEnding::continued);
}

fs::path log_path(const fs::path& slot_file, std::uint64_t number) {
  return beside_slot_file(slot_file, std::string(kLog) + std::to_string(number));
}

std::map<std::uint64_t, fs::path> logs_of(const fs::path& slot_file) {
  std::map<std::uint64_t, fs::path> logs;
  const std::string prefix = beside_slot_file(slot_file, kLog).filename().string();
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(slot_file.parent_path(), ignored)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(prefix)) continue;
    std::uint64_t number = 0;
    const char* const end = name.data() + name.size();
    const auto read = std::from_chars(name.data() + prefix.size(), end, number);
    if (read.ec == std::errc() && read.ptr == end) logs.emplace(number, entry.path());
  }
  return logs;
}

namespace {

Result<> say_of_earlier(const fs::path& path, LogEnding ending) {
  const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0 && errno == ENOENT) return {};
  if (fd < 0) return index_file_failure(path, "opened");
  IndexFileHead head{};
  Result<> said;
  if (::pread(fd, &head, sizeof(head), 0) == sizeof(head) && head.ending == LogEnding::open) {
    head.ending = ending;
    said = write_index_file(fd, std::as_bytes(std::span(&head.ending, 1)),
                            offsetof(IndexFileHead, ending), path);
  }
  ::close(fd);
  return said;
}

}  // namespace

Result<> say_continued(const fs::path& path) { return say_of_earlier(path, LogEnding::continued); }

Result<> say_ran_full(const fs::path& path) { return say_of_earlier(path, LogEnding::ran_full); }

}  // namespace cairn
