#include "blockmgr/reuse/request_record.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <limits>
#include <mutex>
#include <system_error>
#include <utility>

#include "base/hash.hpp"

namespace cairn {
namespace {

constexpr std::chrono::milliseconds kRecordPeriod{200};
// Limits for the notes between two looks of the thread, and for the requests that wait for their
// end: 8 MiB each. At 50,000 requests per second a look finds 10,000.
constexpr std::size_t kRecordedNotes = 16'384;
constexpr std::size_t kRecordedBlocks = 1U << 20U;
// More requests than run at a time.
constexpr std::size_t kWaitingRequests = 1'024;
// Every JSON reader represents numbers up to 2^53 exactly.
constexpr int kIdBits = 53;

void append_number(std::string& text, std::uint64_t value) {
  std::array<char, 20> digits;
  text.append(digits.data(), std::to_chars(digits.begin(), digits.end(), value).ptr);
}

std::string reason(int error_number) { return std::generic_category().message(error_number); }

}  // namespace

RequestRecord::RequestRecord(const Clock& clock, Logger& log, Options options)
    : clock_(clock), log_(log), options_(std::move(options)) {
  std::error_code ignored;  // usually there is no file
  if (std::filesystem::is_regular_file(std::filesystem::symlink_status(options_.path, ignored))) {
    std::filesystem::rename(options_.path, options_.path.string() + ".old", ignored);
  }
  file_ = FileDescriptor(
      ::open(options_.path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!file_) {
    give_up(reason(errno));
    return;
  }
  is_writing_ = true;
  thread_ = Thread("record", [this](const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      {
        std::unique_lock lock(inbox_mutex_);
        wake_.wait_for(lock, stop, kRecordPeriod, [] { return false; });
      }
      guarded("record", [this] { work_off(clock_.unix_ms() - kLongestWaitMs); });
    }
  });
}

void RequestRecord::close() {
  if (!thread_.joinable()) return;
  thread_.request_stop();
  thread_.join();
  guarded("record", [this] { work_off(std::numeric_limits<std::int64_t>::max()); });
  is_writing_ = false;
  file_.reset();
}

std::shared_ptr<const RequestRecord::Source> RequestRecord::open(std::string cache,
                                                                 std::uint32_t block_tokens) {
  const MutexLock lock(inbox_mutex_);
  return std::make_shared<Source>(
      Source{.cache = std::move(cache), .block_tokens = block_tokens, .salt = random_.next_u64()});
}

void RequestRecord::asked(const Asked& asked) {
  if (!is_writing_.load(std::memory_order_relaxed)) return;
  Note note{.request = {.source = asked.source, .ticket = asked.ticket, .unix_ms = asked.unix_ms}};
  note.request.ids.reserve(asked.keys.size());
  for (const KeyView& key : asked.keys) {
    note.request.ids.push_back(hash_bytes(key.bytes(), asked.source->salt) >> (64 - kIdBits));
  }
  leave(std::move(note));
}

void RequestRecord::renamed(std::uint64_t from, std::uint64_t to) {
  if (!is_writing_.load(std::memory_order_relaxed)) return;
  leave({.kind = Note::Kind::renamed, .request = {.ticket = to}, .ticket = from});
}

void RequestRecord::ended(std::uint64_t ticket, const End& end) {
  if (!is_writing_.load(std::memory_order_relaxed)) return;
  leave({.kind = Note::Kind::ended, .ticket = ticket, .end = end});
}

void RequestRecord::leave(Note note) {
  const MutexLock lock(inbox_mutex_);
  if (inbox_.size() == kRecordedNotes || inbox_blocks_ > kRecordedBlocks) {
    if (note.kind == Note::Kind::asked) ++left_out_;
    return;
  }
  inbox_blocks_ += note.request.ids.size();
  inbox_.push_back(std::move(note));
}

void RequestRecord::work_off(std::int64_t all_before_unix_ms) {
  std::vector<Note> notes;
  std::uint64_t left_out = 0;
  {
    const MutexLock lock(inbox_mutex_);
    notes.swap(inbox_);
    inbox_blocks_ = 0;
    left_out = left_out_;
  }
  if (!file_) return;
  if (std::exchange(logged_left_out_, left_out) < left_out) {
    log_.warning("requests came faster than they can be recorded", {{"left_out", left_out}});
  }
  for (Note& note : notes) take(std::move(note));
  std::string text;
  while (!waiting_.empty()) {
    const Request& first = waiting_.front();
    const bool is_due = first.end || first.unix_ms < all_before_unix_ms ||
                        waiting_.size() > kWaitingRequests || waiting_blocks_ > kRecordedBlocks;
    if (!is_due) break;
    const std::string line = line_of(first);
    waiting_blocks_ -= first.ids.size();
    waiting_.pop_front();
    if (written_bytes_ + text.size() + line.size() > options_.max_bytes) {
      write(text);
      if (file_) give_up("it has reached record.max_bytes");
      return;
    }
    text += line;
  }
  write(text);
}

void RequestRecord::take(Note note) {
  if (note.kind == Note::Kind::asked) {
    waiting_blocks_ += note.request.ids.size();
    waiting_.push_back(std::move(note.request));
    return;
  }
  const auto found = std::ranges::find(waiting_, note.ticket, &Request::ticket);
  if (found == waiting_.end()) return;
  if (note.kind == Note::Kind::renamed) {
    found->ticket = note.request.ticket;
  } else {
    found->end = note.end;
  }
}

std::string RequestRecord::line_of(const Request& request) {
  if (!start_unix_ms_) start_unix_ms_ = request.unix_ms;
  last_ms_ = std::max(last_ms_, request.unix_ms - *start_unix_ms_);  // clocks may go back
  const End end = request.end.value_or(End{});
  const std::uint64_t all_tokens = std::uint64_t{request.source->block_tokens} * request.ids.size();
  std::string line = R"({"timestamp": )";
  append_number(line, static_cast<std::uint64_t>(last_ms_));
  line += R"(, "input_length": )";
  append_number(line, end.input_tokens ? *end.input_tokens : all_tokens);
  line += R"(, "output_length": )";
  append_number(line, end.output_tokens.value_or(0));
  line += R"(, "hash_ids": [)";
  for (std::size_t i = 0; i < request.ids.size(); ++i) {
    if (i > 0) line += ", ";
    append_number(line, request.ids[i]);
  }
  // A cache's name needs no escaping.
  return line.append(R"(], "cache": ")").append(request.source->cache).append("\"}\n");
}

void RequestRecord::write(const std::string& text) {
  std::size_t done = 0;
  while (done < text.size()) {
    const ::ssize_t taken = ::write(file_.get(), text.data() + done, text.size() - done);
    if (taken < 0 && errno == EINTR) continue;
    if (taken < 0) {
      const int number = errno;
      // Half a line would make the file invalid as a trace.
      static_cast<void>(::ftruncate(file_.get(), static_cast<off_t>(written_bytes_)));
      return give_up(reason(number));
    }
    done += static_cast<std::size_t>(taken);
  }
  written_bytes_ += text.size();
}

void RequestRecord::give_up(std::string_view why) {
  is_writing_ = false;
  file_.reset();
  waiting_.clear();
  waiting_blocks_ = 0;
  log_.warning("requests are not recorded any more",
               {{"path", options_.path.string()}, {"why", why}});
}

}  // namespace cairn
