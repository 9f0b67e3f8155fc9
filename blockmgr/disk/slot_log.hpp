#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>

#include "base/result.hpp"
#include "blockmgr/disk/index_file.hpp"
#include "blockmgr/disk/journal_entry.hpp"

namespace cairn {

// A log of slot changes: a reserved file mapped into memory, which the kernel keeps if the process
// is killed. Not thread-safe.
class SlotLog {
 public:
  static Result<std::shared_ptr<SlotLog>> make(const std::filesystem::path& path,
                                               const IndexFileHead& head, std::uint64_t size_bytes);
  SlotLog(const SlotLog&) = delete;
  SlotLog& operator=(const SlotLog&) = delete;
  ~SlotLog();

  // If the entry does not fit, marks the log as run full.
  void note(const JournalEntry& entry);
  bool fits(const JournalEntry& entry) const { return encoded_bytes(entry) <= size_ - used_; }
  void say_continued();
  std::uint64_t number() const { return head_.number; }
  bool empty() const { return used_ == sizeof(IndexFileHead); }
  bool half_full() const { return used_ > size_ / 2; }

 private:
  SlotLog(std::byte* data, std::size_t size, const IndexFileHead& head)
      : data_(data), size_(size), head_(head) {}
  void say(LogEnding ending);

  std::byte* const data_;
  const std::size_t size_;
  const IndexFileHead head_;
  std::size_t used_ = sizeof(IndexFileHead);
  bool full_ = false;
};

std::filesystem::path log_path(const std::filesystem::path& slot_file, std::uint64_t number);
// The logs beside a slot file, by number.
std::map<std::uint64_t, std::filesystem::path> logs_of(const std::filesystem::path& slot_file);
// Marks a log of an earlier run. Does nothing if it is missing or already marked.
Result<> say_continued(const std::filesystem::path& path);
Result<> say_ran_full(const std::filesystem::path& path);  // likewise

}  // namespace cairn
