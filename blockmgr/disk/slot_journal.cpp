#include "blockmgr/disk/slot_journal.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <string_view>
#include <system_error>

#include "base/durable_file.hpp"
#include "base/hash.hpp"
#include "base/random.hpp"
#include "blockmgr/disk/slot_log.hpp"
#include "transport/io/slot_file.hpp"

namespace cairn {
namespace {

namespace fs = std::filesystem;

// Bytes of a log per slot, within limits. A log should not run full before a checkpoint is due, and
// should be small compared with the blocks.
constexpr std::uint64_t kLogBytesPerSlot = 256;
constexpr std::uint64_t kMinLogBytes = 1ull << 20;
constexpr std::uint64_t kMaxLogBytes = 64ull << 20;

// Each start adds logs, so a server that is killed again and again would fill its disk.
constexpr std::uint64_t kManyLogs = 8;

// Suffixes of the files beside the slot file.
constexpr std::string_view kIndex = "index";
constexpr std::string_view kNewIndex = "index~new";

// Differs after each boot of the machine. Random if the kernel does not report the boot.
std::uint64_t this_boot() {
  std::string text;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> text;
  if (text.empty()) return RandomBytes().next_u64();
  return hash_bytes(std::as_bytes(std::span(text)), 0);
}

bool begins_with_zeros(std::span<const std::byte> bytes, std::size_t count) {
  return only_zeros(bytes.first(std::min(bytes.size(), count)));
}

}  // namespace

SlotJournal::SlotJournal(Options options) : options_(std::move(options)), boot_(this_boot()) {}

SlotJournal::~SlotJournal() { abandon_checkpoint(); }

fs::path SlotJournal::checkpoint_path() const { return beside_slot_file(options_.path, kIndex); }

IndexFileHead SlotJournal::head_of(const std::array<char, 8>& magic) const {
  IndexFileHead head{};
  head.magic = magic;
  head.file_id = options_.file_id;
  head.num_slots = options_.num_slots;
  return head;
}

std::uint64_t SlotJournal::log_bytes() const {
  if (options_.log_bytes > 0) return options_.log_bytes;
  return std::clamp(options_.num_slots * kLogBytesPerSlot, kMinLogBytes, kMaxLogBytes);
}

Result<SlotJournal::Found> SlotJournal::load() {
  Found found;
  // Indexed by slot until all files are read.
  found.entries.resize(options_.num_slots);
  std::vector<bool> known(options_.num_slots);
  std::vector<bool> unflushed(options_.num_slots);
  const auto take = [&](const JournalEntry& entry, bool flushed) {
    if (entry.place.slot >= options_.num_slots) {
      found.beyond_end = true;
      return;
    }
    unflushed[entry.place.slot] = !flushed;
    found.entries[entry.place.slot] = entry;
    known[entry.place.slot] = true;
  };

  std::uint64_t first_log = 0;
  // Entries borrow from the files, so the mapped pages are not released.
  const MappedData::Options mapped{.counts = options_.mapped};
  auto checkpoint = MappedData::open(checkpoint_path(), mapped);
  if (checkpoint) {
    const auto bytes = checkpoint->bytes();
    if (const auto head = checked_head(bytes, head_of(kCheckpointMagic));
        head && head->record_bytes == bytes.size() - sizeof(IndexFileHead)) {
      JournalReader reader(bytes.subspan(sizeof(IndexFileHead)), head->seed);
      while (const auto entry = reader.next()) take(*entry, true);
      found.complete = reader.read_bytes() == head->record_bytes;
      first_log = head->number;
    }
    if (!found.complete) found.damage.push_back(checkpoint_path().string());
    found.files_.push_back(std::move(*checkpoint));
  } else if (checkpoint.error().code != ErrorCode::not_found) {
    found.damage.push_back(checkpoint.error().detail);
  }
  std::uint64_t expected = first_log;
  LogEnding ending = LogEnding::open;  // of the last log
  bool any_ran_full = false;           // not damage
  std::uint64_t highest = 0;
  for (const auto& [number, path] : logs_of(options_.path)) {
    highest = std::max(highest, number);
    if (number < first_log) continue;
    auto log = MappedData::open(path, mapped);
    if (!log) return std::move(log).error();
    const auto head = checked_head(log->bytes(), head_of(kLogMagic));
    if (!head) {
      // If it begins with zeros, it was created but not started, and its number is reused.
      // Otherwise its content is lost.
      if (!begins_with_zeros(log->bytes(), sizeof(IndexFileHead))) {
        ++found.torn;
        found.damage.push_back(path.string());
      } else if (log->bytes().size() != log_bytes()) {
        found.damage.push_back(path.string());
      }
      continue;
    }
    ++older_logs_;
    last_number_ = std::max(last_number_, number);
    // The first log needs no checkpoint: it started with an empty tier.
    if (first_log == 0 && number == 1) {
      found.complete = true;
      expected = 1;
    }
    if (number != expected++) found.complete = false;
    ending = head->ending;
    if (ending == LogEnding::ran_full) {
      any_ran_full = true;
      found.complete = false;
    }
    JournalReader reader(log->bytes().subspan(sizeof(IndexFileHead)), head->seed);
    const bool same_boot = head->boot == boot_;
    while (const auto entry = reader.next()) take(*entry, same_boot);
    const auto rest = log->bytes().subspan(sizeof(IndexFileHead) + reader.read_bytes());
    const bool whole = log->bytes().size() == sizeof(IndexFileHead) + head->record_bytes &&
                       begins_with_zeros(rest, 64);
    if (!whole) {
      ++found.torn;
      found.damage.push_back(path.string());
    }
    found.files_.push_back(std::move(*log));
  }
  // The next log is missing.
  if (ending != LogEnding::open) found.complete = false;
  // A checkpoint always has a log after it.
  if (last_number_ < first_log) found.complete = false;
  if (!found.complete && !any_ran_full && found.damage.empty()) {
    found.damage.push_back(options_.path.string() + ": a part of its index is missing");
  }
  last_number_ = std::max(last_number_, first_log);
  // Leaves a gap in the numbers. So a start before the next checkpoint does not take the logs for
  // complete.
  if (!found.complete || found.torn > 0) last_number_ = std::max(last_number_, highest) + 1;
  std::uint32_t num_known = 0;
  for (std::uint32_t slot = 0; slot < options_.num_slots; ++slot) {
    if (unflushed[slot]) found.unflushed.push_back(slot);
    if (!known[slot]) continue;
    if (num_known < slot) found.entries[num_known] = found.entries[slot];
    ++num_known;
  }
  found.entries.resize(num_known);
  return found;
}

Result<SlotJournal::NewLog> SlotJournal::make_log(std::uint64_t number) const {
  IndexFileHead head = head_of(kLogMagic);
  head.seed = RandomBytes().next_u64();
  head.number = number;
  head.boot = boot_;
  head.record_bytes = log_bytes() - sizeof(IndexFileHead);
  set_checksum(head);
  return SlotLog::make(log_path(options_.path, number), head, log_bytes());
}

Result<> SlotJournal::begin() {
  const std::uint64_t before = last_number_;
  auto log = make_log(before + 1);
  if (!log) {
    why_no_log_ = std::move(log).error().detail;
    no_room_ = true;
    // Leaves a gap: a later log does not continue those found.
    last_number_ = before + 1;
    return say_ran_full(log_path(options_.path, before));
  }
  last_number_ = before + 1;
  log_ = std::move(*log);
  // Works without a spare: the next checkpoint creates one.
  if (auto spare = make_log(last_number_ + 1)) {
    spare_ = std::move(*spare);
    ++last_number_;
  }
  return say_continued(log_path(options_.path, before));
}

void SlotJournal::use_spare() {
  if (log_) log_->say_continued();
  log_ = std::move(spare_);
  spare_ = nullptr;
}

void SlotJournal::return_number(std::uint64_t number) {
  if (number == last_number_) --last_number_;
}

void SlotJournal::switch_log(NewLog fresh) {
  no_room_ = false;
  older_logs_ = 0;
  // note() created a later log meanwhile. `fresh` stays behind, empty.
  if (fresh && log_ && fresh->number() < log_->number()) fresh = nullptr;
  if (!spare_ && (!log_ || log_->half_full())) spare_ = std::exchange(fresh, nullptr);
  // If the log is not replaced, all of it counts. Entries that are also in the checkpoint do no
  // harm.
  if (spare_) use_spare();
  spare_ = std::move(fresh);
  checkpoint_log_ = log_->number();
}

void SlotJournal::note(const JournalEntry& entry) {
  const bool has_room = log_ && log_->fits(entry);
  if (!has_room && !spare_ && !no_room_) {
    const std::uint64_t number = reserve_number();
    if (auto made = make_log(number)) {
      spare_ = std::move(*made);
    } else {
      return_number(number);
      no_room_ = true;
    }
  }
  if (!has_room && spare_) use_spare();
  if (log_) log_->note(entry);
}

bool SlotJournal::wants_checkpoint() const {
  return !log_ || log_->half_full() || !spare_ || older_logs_ >= kManyLogs;
}
bool SlotJournal::has_changes() const { return !log_ || !log_->empty(); }

Result<> SlotJournal::start_checkpoint() {
  const fs::path beside = beside_slot_file(options_.path, kNewIndex);
  checkpoint_fd_ = ::open(beside.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (checkpoint_fd_ < 0) return index_file_failure(beside, "made");
  checkpoint_seed_ = RandomBytes().next_u64();
  if (::lseek(checkpoint_fd_, sizeof(IndexFileHead), SEEK_SET) < 0)
    return index_file_failure(beside, "written");
  return {};
}

Result<> SlotJournal::write(const std::vector<std::byte>& entries) {
  const fs::path beside = beside_slot_file(options_.path, kNewIndex);
  const ::off_t at = ::lseek(checkpoint_fd_, 0, SEEK_CUR);
  CAIRN_TRY(write_index_file(checkpoint_fd_, entries, static_cast<std::uint64_t>(at), beside));
  if (::lseek(checkpoint_fd_, static_cast<::off_t>(entries.size()), SEEK_CUR) < 0) {
    return index_file_failure(beside, "written");
  }
  return {};
}

Result<> SlotJournal::finish_checkpoint() {
  const fs::path beside = beside_slot_file(options_.path, kNewIndex);
  IndexFileHead head = head_of(kCheckpointMagic);
  head.seed = checkpoint_seed_;
  head.number = checkpoint_log_;
  head.record_bytes =
      static_cast<std::uint64_t>(::lseek(checkpoint_fd_, 0, SEEK_CUR)) - sizeof(IndexFileHead);
  set_checksum(head);
  CAIRN_TRY(write_index_file(checkpoint_fd_, std::as_bytes(std::span(&head, 1)), 0, beside));
  if (::fsync(checkpoint_fd_) != 0) return index_file_failure(beside, "flushed");
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
