#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/mapped_data.hpp"
#include "base/result.hpp"
#include "blockmgr/disk/index_file.hpp"
#include "blockmgr/disk/journal_entry.hpp"

namespace cairn {

class SlotLog;

// The index of a disk tier as it lies beside the slot file: a checkpoint `PATH~index` and a log
// `PATH~log.N` of what changed since. Every change of a slot is an entry, in the order in which
// the cache saw it; the last one counts.
//
// The log is a reserved file mapped into memory: noting a change copies some hundred bytes, and
// the kernel keeps them when the process is killed. A checkpoint begins a new log under the cache's
// lock, then writes the slots as they are, a batch at a time: what changes meanwhile is in the new
// log too. Once it is durable the older logs go.
//
// A spare log is reserved ahead, for when one runs full before its checkpoint.
//
// Not thread-safe: what is marked so under the cache's lock, the rest by one thread.
class SlotJournal {
 public:
  struct Options {
    std::filesystem::path path;  // of the slot file
    std::uint64_t file_id = 0;   // of the slot file: another's index is not taken
    std::uint32_t num_slots = 0;
    std::uint64_t log_bytes = 0;     // 0: what suits the number of slots
    MappedCounts* mapped = nullptr;  // borrowed; null: nobody counts
  };
  explicit SlotJournal(Options options);
  ~SlotJournal();

  // What was found at the start: the mapped files, and of each slot what was said last.
  class Found;
  // Not `complete`, or torn, where the headers of the slots have to be read too: no checkpoint and
  // no log, or one that is gone, was damaged or ran full.
  Result<Found> load();

  // Begins the first log of this run. Its number is above those found, and so rises from run to
  // run. Where none can be made, why_no_log() says why: what changes is noted nowhere until the
  // next checkpoint has made one, and a start before that reads the headers. An error where not
  // even that could be said to such a start.
  Result<> begin();
  const std::string& why_no_log() const { return why_no_log_; }
  std::uint64_t next_log() const { return last_number_ + 1; }
  // Under the lock. Where neither log nor spare has room another log is made at once, which takes
  // milliseconds; where the disk is full too the log says that it lacks something.
  void note(const JournalEntry& entry);
  // Under the lock. Without a log, half full, without a spare, or one of many, so that the next
  // checkpoint should not wait.
  bool wants_checkpoint() const;
  bool has_changes() const;  // under the lock

  // A checkpoint, in this order; `write` as often as there are batches.
  using NewLog = std::shared_ptr<SlotLog>;
  std::uint64_t reserve_number() { return ++last_number_; }  // under the lock
  void return_number(std::uint64_t number);                  // the same; where none was made
  Result<NewLog> make_log(std::uint64_t number) const;
  bool has_spare() const { return spare_ != nullptr; }  // under the lock
  // Under the lock. What changes from here on is in the spare, and this is the next spare; null
  // where none could be made, which takes a spare.
  void switch_log(NewLog fresh);
  Result<> start_checkpoint();
  Result<> write(const std::vector<std::byte>& entries);
  Result<> finish_checkpoint();
  std::uint64_t checkpoint_seed() const { return checkpoint_seed_; }
  // After an error in between: the older checkpoint and all logs stay.
  void abandon_checkpoint();

  // Removes the files of an index.
  static void remove(const std::filesystem::path& slot_file);

 private:
  void use_spare();
  std::filesystem::path checkpoint_path() const;
  IndexFileHead head_of(const std::array<char, 8>& magic) const;  // without its checksum
  std::uint64_t log_bytes() const;

  const Options options_;
  const std::uint64_t boot_;  // of the machine
  NewLog log_;                // null: none could be made yet
  NewLog spare_;
  std::string why_no_log_;
  bool no_room_ = false;          // for another log
  std::uint64_t older_logs_ = 0;  // that were found
  std::uint64_t last_number_ = 0;
  int checkpoint_fd_ = -1;
  std::uint64_t checkpoint_seed_ = 0;
  std::uint64_t checkpoint_log_ = 0;  // the first log that counts beside it
};

class SlotJournal::Found {
 public:
  bool complete = false;
  std::uint64_t torn = 0;             // logs that are not whole
  bool beyond_end = false;            // it has slots that there are no more
  std::vector<std::string> damage;    // each names a file that is not what was written, or gone
  std::vector<JournalEntry> entries;  // the last of each slot that there is one of
  // Slots, in order, of which only a log tells that was begun before the machine's last start: a
  // power cut may have taken what came to them.
  std::vector<std::uint32_t> unflushed;

 private:
  friend class SlotJournal;
  std::vector<MappedData> files_;  // what the entries borrow
};

}  // namespace cairn
