#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "base/file_descriptor.hpp"
#include "base/log.hpp"
#include "base/mutex.hpp"
#include "base/random.hpp"
#include "base/thread.hpp"
#include "blockmgr/eviction/history.hpp"
#include "blockmgr/index/types.hpp"

namespace cairn {

// Writes the requests to caches into a file, one JSON object per line, in the format of Mooncake's
// traces: `timestamp` (ms from the first request on), `input_length`, `output_length` (tokens),
// `hash_ids`, and `cache`. An id is 53 bits of a hash of the key. The hash is salted with random
// bytes, different for each cache and each file, which are never written. So equal keys have equal
// ids, and an id does not reveal its key.
//
// A request leaves a note, and a thread writes. The thread holds a request until its end is
// reported, kLongestWaitMs at most, because its line includes the end. An error is logged and ends
// the record; no request fails because of it. Thread-safe.
class RequestRecord {
 public:
  static constexpr std::int64_t kLongestWaitMs = 60'000;

  struct Options {
    std::filesystem::path path;  // an existing file is renamed to path.old
    std::uint64_t max_bytes = 0;
  };
  // Borrows both; they must outlive it. If the file cannot be created, logs that and records
  // nothing.
  RequestRecord(const Clock& clock, Logger& log, Options options);
  ~RequestRecord() { close(); }

  // A recorded cache.
  struct Source {
    std::string cache;
    std::uint32_t block_tokens = 0;
    std::uint64_t salt = 0;
  };
  std::shared_ptr<const Source> open(std::string cache, std::uint32_t block_tokens);

  struct Asked {
    std::shared_ptr<const Source> source;
    std::span<const KeyView> keys;
    std::uint64_t ticket = 0;  // identifies the request in ended()
    std::int64_t unix_ms = 0;
  };
  void asked(const Asked& asked);
  // Changes a request's ticket.
  void renamed(std::uint64_t from, std::uint64_t to);
  struct End {
    std::optional<std::uint32_t> input_tokens = {};
    std::optional<std::uint32_t> output_tokens = {};
  };
  void ended(std::uint64_t ticket, const End& end);

  // Writes all notes and stops recording.
  void close();

 private:
  struct Request {
    std::shared_ptr<const Source> source = {};
    std::vector<std::uint64_t> ids = {};
    std::uint64_t ticket = 0;
    std::int64_t unix_ms = 0;
    std::optional<End> end = {};
  };
  struct Note {
    enum class Kind : std::uint8_t { asked, renamed, ended } kind = Kind::asked;
    Request request = {};
    std::uint64_t ticket = 0;
    End end = {};
  };
  void leave(Note note) CAIRN_EXCLUDES(inbox_mutex_);
  void work_off(std::int64_t all_before_unix_ms) CAIRN_EXCLUDES(inbox_mutex_);
  void take(Note note);
  std::string line_of(const Request& request);
  void write(const std::string& text);
  void give_up(std::string_view why);

  const Clock& clock_;
  Logger& log_;
  const Options options_;
  std::atomic<bool> is_writing_{false};
  Mutex inbox_mutex_;
  std::vector<Note> inbox_ CAIRN_GUARDED_BY(inbox_mutex_);
  std::size_t inbox_blocks_ CAIRN_GUARDED_BY(inbox_mutex_) = 0;
  std::uint64_t left_out_ CAIRN_GUARDED_BY(inbox_mutex_) = 0;
  RandomBytes random_ CAIRN_GUARDED_BY(inbox_mutex_);
  // Only for the thread, and for close() after the thread has ended:
  FileDescriptor file_;
  std::deque<Request> waiting_;  // oldest first
  std::size_t waiting_blocks_ = 0;
  std::uint64_t written_bytes_ = 0;
  std::uint64_t logged_left_out_ = 0;
  std::optional<std::int64_t> start_unix_ms_;  // of the first request
  std::int64_t last_ms_ = 0;
  Condition wake_;
  Thread thread_;  // last: it uses all the others
};

// Where a cache's requests are recorded; nowhere without a record.
struct RecordedCache {
  RequestRecord* record = nullptr;
  std::shared_ptr<const RequestRecord::Source> source = {};
};

}  // namespace cairn
