#include "blockmgr/slot_journal.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <cstddef>
#include <cstring>
#include <fstream>
#include <map>
#include <string>
#include <string_view>
#include <system_error>

#include "base/assert.hpp"
#include "base/durable_file.hpp"
#include "base/file_error.hpp"
#include "base/hash.hpp"
#include "base/random.hpp"
#include "transport/slot_file.hpp"

namespace cairn {
namespace {

namespace fs = std::filesystem;

// A log holds this many records of a usual size for each slot, within bounds: it should not run
// full before a checkpoint is due, nor be worth mentioning beside the blocks.
constexpr std::uint64_t kLogBytesPerSlot = 256;
constexpr std::uint64_t kMinLogBytes = 1ull << 20;
constexpr std::uint64_t kMaxLogBytes = 64ull << 20;

// Each start adds logs, with which a server that is killed again and again would fill its disk.
constexpr std::uint64_t kManyLogs = 8;

constexpr std::array<char, 8> kLogMagic = {'C', 'A', 'I', 'R', 'N', 'L', 'O', 'G'};
constexpr std::array<char, 8> kCheckpointMagic = {'C', 'A', 'I', 'R', 'N', 'C', 'K', 'P'};
constexpr std::uint64_t kVersion = 2;

// Beside the slot file; the log's number follows.
constexpr std::string_view kIndex = "index";
constexpr std::string_view kNewIndex = "index~new";
constexpr std::string_view kLog = "log.";

// A file of either kind begins with this; records follow. Written last of a checkpoint, so that one
// without it is none.
struct FileHead {
  std::array<char, 8> magic;
  std::uint64_t checksum;  // of what follows it, up to `ending`
  std::uint64_t version;
  std::uint64_t file_id;
  std::uint64_t num_slots;
  std::uint64_t seed;
  std::uint64_t number;  // of the log; of a checkpoint: of the first log that counts beside it
  std::uint64_t record_bytes;  // of a checkpoint
  std::uint64_t ending;        // of a log: a LogEnding
  std::uint64_t boot;          // of a log: the machine's start in whose time it was begun
};
static_assert(sizeof(FileHead) == 80);

enum LogEnding : std::uint64_t {
  kOpen = 0,       // what came last is its last record
  kRanFull = 1,    // what came then is not in it
  kContinued = 2,  // another log follows it
};

std::uint64_t checksum_of(const FileHead& head) {
  constexpr std::size_t kFrom = sizeof(head.magic) + sizeof(head.checksum);
  return hash_bytes(
      std::as_bytes(std::span(&head, 1)).first(offsetof(FileHead, ending)).subspan(kFrom), 0);
}

// Another after each start of the machine. Where the kernel does not tell, no two are the same.
std::uint64_t this_boot() {
  std::string text;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> text;
  if (text.empty()) return RandomBytes().next_u64();
  return hash_bytes(std::as_bytes(std::span(text)), 0);
}

Error failure(const fs::path& path, const char* what) {
  const int number = errno;
  return {file_error_code(number),
          path.string() + " cannot be " + what + ": " + std::generic_category().message(number)};
}

Result<> write_at(int fd, std::span<const std::byte> bytes, std::uint64_t at,
                  const fs::path& path) {
  while (!bytes.empty()) {
    const ::ssize_t written = ::pwrite(fd, bytes.data(), bytes.size(), static_cast<off_t>(at));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return failure(path, "written");
    at += static_cast<std::uint64_t>(written);
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
  return {};
}

// The head of a file of that kind and slot file, else nothing.
std::optional<FileHead> head_of(std::span<const std::byte> bytes, const std::array<char, 8>& magic,
                                std::uint64_t file_id, std::uint64_t num_slots) {
  FileHead head;
  if (bytes.size() < sizeof(head)) return std::nullopt;
  std::memcpy(&head, bytes.data(), sizeof(head));
  const bool right = head.magic == magic && head.version == kVersion &&
                     head.checksum == checksum_of(head) && head.file_id == file_id &&
                     head.num_slots == num_slots;
  if (!right) return std::nullopt;
  return head;
}

bool begins_with_zeros(std::span<const std::byte> bytes, std::size_t count) {
  return std::ranges::all_of(bytes.first(std::min(bytes.size(), count)),
                             [](std::byte b) { return b == std::byte{0}; });
}

// The logs beside a slot file, by number.
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

// Of a log of an earlier run, where there is one and it did not run full.
Result<> say_continued(const fs::path& path) {
  const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0 && errno == ENOENT) return {};
  if (fd < 0) return failure(path, "opened");
  FileHead head{};
  Result<> said;
  if (::pread(fd, &head, sizeof(head), 0) == sizeof(head) && head.ending == kOpen) {
    head.ending = kContinued;
    said =
        write_at(fd, std::as_bytes(std::span(&head.ending, 1)), offsetof(FileHead, ending), path);
  }
  ::close(fd);
  return said;
}

}  // namespace

Result<MappedFile> MappedFile::open(const fs::path& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0 && errno == ENOENT) return Error{ErrorCode::not_found, path.string()};
  if (fd < 0) return failure(path, "opened");
  struct ::stat status {};
  void* data = MAP_FAILED;
  const bool known = ::fstat(fd, &status) == 0;
  const auto size = static_cast<std::size_t>(status.st_size);
  if (known && size > 0) {
    data = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE | MAP_POPULATE, fd, 0);
  }
  const int error = errno;
  ::close(fd);
  errno = error;
  if (!known || (size > 0 && data == MAP_FAILED)) return failure(path, "mapped");
  return MappedFile(size > 0 ? static_cast<const std::byte*>(data) : nullptr, size);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

class SlotJournal::Log {
 public:
  static Result<NewLog> make(const fs::path& path, FileHead head, std::uint64_t size_bytes) {
    const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0) return failure(path, "made");
    const auto fail = [&](const char* what) -> Error {
      Error error = failure(path, what);
      ::close(fd);
      ::unlink(path.c_str());
      return error;
    };
    // All of it is there before it is mapped: a full disk would be a signal, not an error.
    if (const int error = ::posix_fallocate(fd, 0, static_cast<off_t>(size_bytes)); error != 0) {
      errno = error;
      return fail("reserved");
    }
    void* const data =
        ::mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
    if (data == MAP_FAILED) return fail("mapped");
    ::close(fd);
    std::memcpy(data, &head, sizeof(head));
    return NewLog(new Log(static_cast<std::byte*>(data), size_bytes, head));
  }
  Log(const Log&) = delete;
  Log& operator=(const Log&) = delete;
  ~Log() { ::munmap(data_, size_); }

  void note(const SlotRecordView& record) {
    const std::size_t bytes = encoded_bytes(record);
    if (full_ || bytes > size_ - used_) {
      // The next start reads the slots' headers.
      if (!std::exchange(full_, true)) {
        reinterpret_cast<FileHead*>(data_)->ending = kRanFull;
      }
      return;
    }
    encode(record, head_.seed, {data_ + used_, bytes});
    used_ += bytes;
  }
  void say_continued() {
    if (!full_) reinterpret_cast<FileHead*>(data_)->ending = kContinued;
  }
  bool fits(const SlotRecordView& record) const { return encoded_bytes(record) <= size_ - used_; }
  std::uint64_t number() const { return head_.number; }
  bool empty() const { return used_ == sizeof(FileHead); }
  bool half_full() const { return used_ > size_ / 2; }

 private:
  Log(std::byte* data, std::size_t size, const FileHead& head)
      : data_(data), size_(size), head_(head) {}
  std::byte* const data_;
  const std::size_t size_;
  const FileHead head_;
  std::size_t used_ = sizeof(FileHead);
  bool full_ = false;
};

SlotJournal::SlotJournal(Options options) : options_(std::move(options)), boot_(this_boot()) {}

SlotJournal::~SlotJournal() { abandon_checkpoint(); }

fs::path SlotJournal::checkpoint_path() const { return beside_slot_file(options_.path, kIndex); }

fs::path SlotJournal::log_path(std::uint64_t number) const {
  return beside_slot_file(options_.path, std::string(kLog) + std::to_string(number));
}

std::uint64_t SlotJournal::log_bytes() const {
  if (options_.log_bytes > 0) return options_.log_bytes;
  return std::clamp(options_.num_slots * kLogBytesPerSlot, kMinLogBytes, kMaxLogBytes);
}

Result<SlotJournal::Found> SlotJournal::load() {
  Found found;
  std::vector<SlotRecordView> last(options_.num_slots);
  std::vector<bool> known(options_.num_slots);
  std::vector<bool> unflushed(options_.num_slots);
  const auto take = [&](const SlotRecordView& record, bool flushed) {
    if (record.slot >= options_.num_slots) return;
    unflushed[record.slot] = !flushed;
    last[record.slot] = record;
    known[record.slot] = true;
  };

  std::uint64_t first_log = 0;
  auto checkpoint = MappedFile::open(checkpoint_path());
  if (checkpoint) {
    const auto bytes = checkpoint->bytes();
    if (const auto head = head_of(bytes, kCheckpointMagic, options_.file_id, options_.num_slots);
        head && head->record_bytes == bytes.size() - sizeof(FileHead)) {
      SlotRecordReader reader(bytes.subspan(sizeof(FileHead)), head->seed);
      while (const auto record = reader.next()) take(*record, true);
      found.complete = reader.read_bytes() == head->record_bytes;
      first_log = head->number;
    }
    found.files_.push_back(std::move(*checkpoint));
  }
  std::uint64_t expected = first_log;
  std::uint64_t ending = kOpen;  // of the last log
  std::uint64_t highest = 0;
  for (const auto& [number, path] : logs_of(options_.path)) {
    highest = std::max(highest, number);
    if (number < first_log) continue;
    auto log = MappedFile::open(path);
    if (!log) return std::move(log).error();
    const auto head = head_of(log->bytes(), kLogMagic, options_.file_id, options_.num_slots);
    if (!head) {
      // Made, but not begun: its number is taken again. Else what was in it is lost.
      if (!begins_with_zeros(log->bytes(), sizeof(FileHead))) ++found.torn;
      continue;
    }
    ++older_logs_;
    last_number_ = std::max(last_number_, number);
    // A first log without a checkpoint is complete in itself: it began with an empty tier.
    if (first_log == 0 && number == 1) {
      found.complete = true;
      expected = 1;
    }
    if (number != expected++) found.complete = false;
    ending = head->ending;
    if (ending == kRanFull) found.complete = false;
    SlotRecordReader reader(log->bytes().subspan(sizeof(FileHead)), head->seed);
    const bool same_boot = head->boot == boot_;
    while (const auto record = reader.next()) take(*record, same_boot);
    const auto rest = log->bytes().subspan(sizeof(FileHead) + reader.read_bytes());
    const bool whole = log->bytes().size() == log_bytes() && begins_with_zeros(rest, 64);
    if (!whole) ++found.torn;
    found.files_.push_back(std::move(*log));
  }
  // The log that follows is gone.
  if (ending != kOpen) found.complete = false;
  // A checkpoint has a log beside it from its first moment on.
  if (last_number_ < first_log) found.complete = false;
  last_number_ = std::max(last_number_, first_log);
  // Logs after a gap are not taken for all there is, until a checkpoint has what the headers tell.
  if (!found.complete || found.torn > 0) last_number_ = std::max(last_number_, highest) + 1;
  for (std::uint32_t slot = 0; slot < options_.num_slots; ++slot) {
    if (known[slot]) found.records.push_back(last[slot]);
    if (unflushed[slot]) found.unflushed.push_back(slot);
  }
  return found;
}

Result<SlotJournal::NewLog> SlotJournal::make_log(std::uint64_t number) const {
  FileHead head{};
  head.magic = kLogMagic;
  head.version = kVersion;
  head.file_id = options_.file_id;
  head.num_slots = options_.num_slots;
  head.seed = RandomBytes().next_u64();
  head.number = number;
  head.boot = boot_;
  head.checksum = checksum_of(head);
  return Log::make(log_path(number), head, log_bytes());
}

Result<> SlotJournal::begin() {
  const std::uint64_t before = last_number_;
  auto log = make_log(before + 1);
  if (!log) return std::move(log).error();
  last_number_ = before + 1;
  log_ = std::move(*log);
  // Without a spare it goes on as well: the next checkpoint makes one.
  if (auto spare = make_log(last_number_ + 1)) {
    spare_ = std::move(*spare);
    ++last_number_;
  }
  return say_continued(log_path(before));
}

void SlotJournal::use_spare() {
  log_->say_continued();
  log_ = std::move(spare_);
  spare_ = nullptr;
}

void SlotJournal::return_number(std::uint64_t number) {
  if (number == last_number_) --last_number_;
}

void SlotJournal::switch_log(NewLog fresh) {
  no_room_ = false;
  older_logs_ = 0;
  // One that note() made meanwhile comes after it: it stays behind, empty.
  if (fresh && fresh->number() < log_->number()) fresh = nullptr;
  if (!spare_ && log_->half_full()) spare_ = std::exchange(fresh, nullptr);
  // A log that is not left counts whole: what is in it and in the checkpoint too does no harm.
  if (spare_) use_spare();
  spare_ = std::move(fresh);
  checkpoint_log_ = log_->number();
}

void SlotJournal::note(const SlotRecordView& record) {
  if (!log_->fits(record) && !spare_ && !no_room_) {
    const std::uint64_t number = reserve_number();
    if (auto made = make_log(number)) {
      spare_ = std::move(*made);
    } else {
      return_number(number);
      no_room_ = true;
    }
  }
  if (!log_->fits(record) && spare_) use_spare();
  log_->note(record);
}

bool SlotJournal::wants_checkpoint() const {
  return log_->half_full() || !spare_ || older_logs_ >= kManyLogs;
}
bool SlotJournal::has_changes() const { return !log_->empty(); }

Result<> SlotJournal::start_checkpoint() {
  const fs::path beside = beside_slot_file(options_.path, kNewIndex);
  checkpoint_fd_ = ::open(beside.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (checkpoint_fd_ < 0) return failure(beside, "made");
  checkpoint_seed_ = RandomBytes().next_u64();
  if (::lseek(checkpoint_fd_, sizeof(FileHead), SEEK_SET) < 0) return failure(beside, "written");
  return {};
}

Result<> SlotJournal::write(const std::vector<std::byte>& records) {
  const fs::path beside = beside_slot_file(options_.path, kNewIndex);
  const ::off_t at = ::lseek(checkpoint_fd_, 0, SEEK_CUR);
  CAIRN_TRY(write_at(checkpoint_fd_, records, static_cast<std::uint64_t>(at), beside));
  if (::lseek(checkpoint_fd_, static_cast<::off_t>(records.size()), SEEK_CUR) < 0) {
    return failure(beside, "written");
  }
  return {};
}

Result<> SlotJournal::finish_checkpoint() {
  const fs::path beside = beside_slot_file(options_.path, kNewIndex);
  FileHead head{};
  head.magic = kCheckpointMagic;
  head.version = kVersion;
  head.file_id = options_.file_id;
  head.num_slots = options_.num_slots;
  head.seed = checkpoint_seed_;
  head.number = checkpoint_log_;
  head.record_bytes =
      static_cast<std::uint64_t>(::lseek(checkpoint_fd_, 0, SEEK_CUR)) - sizeof(FileHead);
  head.checksum = checksum_of(head);
  CAIRN_TRY(write_at(checkpoint_fd_, std::as_bytes(std::span(&head, 1)), 0, beside));
  if (::fsync(checkpoint_fd_) != 0) return failure(beside, "flushed");
  ::close(std::exchange(checkpoint_fd_, -1));
  CAIRN_TRY(rename_durably(beside, checkpoint_path()));
  std::error_code ignored;
  for (const auto& [number, path] : logs_of(options_.path)) {
    if (number < checkpoint_log_) fs::remove(path, ignored);
  }
  return {};
}

void SlotJournal::abandon_checkpoint() {
  if (checkpoint_fd_ < 0) return;
  ::close(std::exchange(checkpoint_fd_, -1));
  ::unlink(beside_slot_file(options_.path, kNewIndex).c_str());
}

void SlotJournal::remove(const fs::path& slot_file) {
  std::error_code ignored;
  fs::remove(beside_slot_file(slot_file, kIndex), ignored);
  fs::remove(beside_slot_file(slot_file, kNewIndex), ignored);
  for (const auto& [number, path] : logs_of(slot_file)) fs::remove(path, ignored);
}

}  // namespace cairn
