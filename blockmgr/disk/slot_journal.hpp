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

// The index of a disk tier, stored beside the slot file: a checkpoint `PATH~index`, and a log
// `PATH~log.N` of later changes. Every change of a slot appends an entry, in the order in which the
// cache saw it. The last entry of a slot counts.
//
// The log is a reserved file mapped into memory. Noting a change copies about a hundred bytes, and
// the kernel keeps them if the process is killed. A checkpoint starts a new log under the cache's
// lock, then writes the slots batch by batch. Changes made meanwhile are in the new log too. Once
// the checkpoint is durable, the older logs are removed.
//
// A spare log is reserved in advance, in case the log runs full before its checkpoint.
//
// Not thread-safe. Call functions marked "under the lock" with the cache's lock held, and the
// others from one thread.
class SlotJournal {
 public:
  struct Options {
    std::filesystem::path path;  // of the slot file
    std::uint64_t file_id = 0;   // of the slot file; an index with another id is ignored
    std::uint32_t num_slots = 0;
    std::uint64_t log_bytes = 0;     // 0: depends on num_slots
    MappedCounts* mapped = nullptr;  // borrowed; may be null
  };
  explicit SlotJournal(Options options);
  ~SlotJournal();

  // The index found at the start: the mapped files, and the last entry of each slot.
  class Found;
  // Reads the index. If it is not `complete`, or logs are torn, the caller must also read the
  // slots' headers. That happens if there is neither checkpoint nor log, or if one is missing,
  // damaged or ran full.
  Result<Found> load();

  // Starts the first log of this run, with a number above those found. If no log can be created,
  // why_no_log() says why: changes are then not noted until the next checkpoint creates a log, and
  // a start before that reads the headers. Returns an error if the last log found cannot be marked
  // accordingly.
  Result<> begin();
  const std::string& why_no_log() const { return why_no_log_; }
  std::uint64_t next_log() const { return last_number_ + 1; }
  // Under the lock. If neither the log nor the spare has room, creates another log, which takes
  // milliseconds. If the disk is full too, marks the log as run full.
  void note(const JournalEntry& entry);
  // Under the lock. Returns true if the next checkpoint should not wait: no log or no spare, a log
  // that is half full, or many logs.
  bool wants_checkpoint() const;
  bool has_changes() const;  // under the lock

  // To make a checkpoint, call these in this order; `write` once per batch.
  using NewLog = std::shared_ptr<SlotLog>;
  std::uint64_t reserve_number() { return ++last_number_; }  // under the lock
  void return_number(std::uint64_t number);  // under the lock; if the log was not created
  Result<NewLog> make_log(std::uint64_t number) const;
  bool has_spare() const { return spare_ != nullptr; }  // under the lock
  // Under the lock. Later changes go to the spare, and `fresh` becomes the next spare. `fresh` is
  // null if it could not be created. REQUIRES: `fresh` or a spare.
  void switch_log(NewLog fresh);
  Result<> start_checkpoint();
  Result<> write(const std::vector<std::byte>& entries);
  Result<> finish_checkpoint();
  std::uint64_t checkpoint_seed() const { return checkpoint_seed_; }
  // Call after an error in between. Keeps the older checkpoint and all logs.
  void abandon_checkpoint();

  // Removes the files of an index.
  static void remove(const std::filesystem::path& slot_file);

 private:
  void use_spare();
  std::filesystem::path checkpoint_path() const;
  IndexFileHead head_of(const std::array<char, 8>& magic) const;  // without a checksum
  std::uint64_t log_bytes() const;

  const Options options_;
  const std::uint64_t boot_;  // identifies the machine's boot
  NewLog log_;                // null: none could be created yet
  NewLog spare_;
  std::string why_no_log_;
  bool no_room_ = false;          // for another log
  std::uint64_t older_logs_ = 0;  // found by load()
  std::uint64_t last_number_ = 0;
  int checkpoint_fd_ = -1;
  std::uint64_t checkpoint_seed_ = 0;
  std::uint64_t checkpoint_log_ = 0;  // the first log to read after it
};

class SlotJournal::Found {
 public:
  bool complete = false;
  std::uint64_t torn = 0;             // incomplete logs
  bool beyond_end = false;            // it has slots that no longer exist
  std::vector<std::string> damage;    // each names a damaged or missing file
  std::vector<JournalEntry> entries;  // the last one of each slot that has any
  // Slots, in order, whose last entry is in a log from before the machine's last boot. A power cut
  // may have lost the bytes written to them.
  std::vector<std::uint32_t> unflushed;

 private:
  friend class SlotJournal;
  std::vector<MappedData> files_;  // the entries borrow from these
};

}  // namespace cairn
