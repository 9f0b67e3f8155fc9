#include "blockmgr/reuse/reuse_watch.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

namespace cairn {
namespace {

// Limits for waiting notes and for the blocks in them, 16 bytes each: enough for two requests with
// the most keys allowed.
constexpr std::size_t kMostNotes = 1024;
constexpr std::size_t kMostNotedBlocks = 131'072;
// Beyond these a request processes the notes itself: at 10,000 requests per second and more, or if
// nobody calls catch_up().
constexpr std::size_t kManyNotes = kMostNotes / 2;
constexpr std::size_t kManyNotedBlocks = kMostNotedBlocks / 2;
// A look and a later match for the same keys are one request, if at most this many requests and
// this much time lie between them.
constexpr std::uint64_t kSameWithin = 16;
constexpr std::int64_t kSameWithinMs = 1'000;

}  // namespace

ReuseWatch::ReuseWatch(const CapacityCurve::Options& options, RecordedCache recorded)
    : recorded_(std::move(recorded)), curve_(std::make_unique<CapacityCurve>(options)) {
  left_out_bits_ = curve_->left_out_bits();
}

std::uint64_t ReuseWatch::ticket_of(const LeaseId& lease) {
  std::uint64_t ticket = 0;
  std::memcpy(&ticket, lease.secret.data(), sizeof(ticket));
  return ticket | 1U;  // 0 is none
}

void ReuseWatch::matched(const Match& match) {
  if (match.keys.empty()) return;
  Note note;
  note.request.blocks = static_cast<std::uint32_t>(match.keys.size());
  note.request.unix_ms = match.unix_ms;
  const std::uint64_t left_out_bits = left_out_bits_.load(std::memory_order_relaxed);
  std::uint64_t hash = 0;
  std::uint64_t missed_hash = 0;
  auto hub = match.hubs.begin();
  for (std::size_t i = 0; i < match.keys.size(); ++i) {
    hash = plain_hash(match.keys[i]);
    if (i == match.found) missed_hash = hash;
    const bool has_children = hub != match.hubs.end() && *hub == i;
    if (has_children) {
      ++hub;
      remember_hub(hash);
    }
    const AskedBlock block{.key_hash = hash, .is_hub = has_children || is_hub(hash)};
    const bool followed = block.is_hub || (hash & left_out_bits) == 0;
    if (followed) note.request.followed.push_back(block);
    note.request.has_last = followed;
  }
  note.request.ticket = match.lease ? ticket_of(*match.lease) : hash | 1U;
  std::uint64_t again_as = 0;  // the earlier look that belongs to this request; 0: none
  {
    const MutexLock lock(inbox_mutex_);
    Seen& seen = seen_[hash >> 56U];
    const bool again = seen.only_looked && seen.key_hash == hash &&
                       seen.keys == match.keys.size() && requests_ - seen.number < kSameWithin &&
                       match.unix_ms - seen.unix_ms < kSameWithinMs;
    if (again && match.only_looks) return;
    if (again) {
      seen.only_looked = false;
      again_as = seen.ticket;
    } else {
      seen = {.key_hash = hash,
              .number = ++requests_,
              .ticket = note.request.ticket,
              .keys = match.keys.size(),
              .unix_ms = match.unix_ms,
              .only_looked = match.only_looks};
    }
    if (!match.lease && match.found < match.keys.size()) {
      missed_[missed_hash >> 56U] = {missed_hash, note.request.ticket};
    }
  }
  if (again_as != 0) return leave_renamed(again_as, note.request.ticket);
  if (recorded_.record != nullptr) {
    recorded_.record->asked({.source = recorded_.source,
                             .keys = match.keys,
                             .ticket = note.request.ticket,
                             .unix_ms = match.unix_ms});
  }
  leave(std::move(note));
}

void ReuseWatch::remember_hub(std::uint64_t key_hash) {
  if (is_hub(key_hash)) return;
  hubs_[hub_place(key_hash)].store(static_cast<std::uint32_t>(key_hash >> 32U),
                                   std::memory_order_relaxed);
  hub_bits_[hub_place(key_hash) / 64].fetch_or(std::uint64_t{1} << (hub_place(key_hash) % 64),
                                               std::memory_order_relaxed);
}

void ReuseWatch::ended(const LeaseId& lease, const RequestEnd& end,
                       std::optional<std::uint32_t> input_tokens) {
  if (recorded_.record != nullptr) {
    recorded_.record->ended(ticket_of(lease),
                            {.input_tokens = input_tokens, .output_tokens = end.output_tokens});
  }
  leave({.kind = Note::Kind::ended, .ticket = ticket_of(lease), .end = end});
}

void ReuseWatch::leave_renamed(std::uint64_t from, std::uint64_t to) {
  if (recorded_.record != nullptr) recorded_.record->renamed(from, to);
  leave({.kind = Note::Kind::renamed, .request = {.ticket = to}, .ticket = from});
}

void ReuseWatch::stored(std::span<const std::uint64_t> key_hashes, const LeaseId& lease) {
  if (key_hashes.empty()) return;
  const std::uint64_t first_hash = key_hashes.front();
  std::uint64_t request = 0;
  {
    const MutexLock lock(inbox_mutex_);
    Missed& missed = missed_[first_hash >> 56U];
    if (missed.key_hash == first_hash) request = std::exchange(missed.ticket, 0U);
  }
  if (request != 0) leave_renamed(request, ticket_of(lease));
  Note note{.kind = Note::Kind::stored};
  const std::uint64_t left_out_bits = left_out_bits_.load(std::memory_order_relaxed);
  for (const std::uint64_t hash : key_hashes) {
    if ((hash & left_out_bits) == 0) note.request.followed.push_back({.key_hash = hash});
  }
  if (!note.request.followed.empty()) leave(std::move(note));
}

void ReuseWatch::leave(Note note) {
  {
    const MutexLock lock(inbox_mutex_);
    if (inbox_.size() >= kMostNotes || inbox_blocks_ > kMostNotedBlocks) return;
    inbox_blocks_ += note.request.followed.size();
    inbox_.push_back(std::move(note));
    if (inbox_.size() < kManyNotes && inbox_blocks_ < kManyNotedBlocks) return;
  }
  if (!curve_mutex_.try_lock()) return;  // the holder of the lock, or the next caller, processes it
  work_off();
  curve_mutex_.unlock();
}

void ReuseWatch::catch_up() {
  const MutexLock lock(curve_mutex_);
  work_off();
}

void ReuseWatch::work_off() const {
  std::vector<Note> notes;
  {
    const MutexLock lock(inbox_mutex_);
    notes.swap(inbox_);
    inbox_blocks_ = 0;
  }
  for (Note& note : notes) {
    switch (note.kind) {
      case Note::Kind::asked:
        curve_->asked(std::move(note.request));
        break;
      case Note::Kind::renamed:
        curve_->rename(note.ticket, note.request.ticket);
        break;
      case Note::Kind::ended:
        curve_->ended(note.ticket, note.end);
        break;
      case Note::Kind::stored:
        for (const AskedBlock& block : note.request.followed) curve_->stored(block);
        break;
    }
  }
  follows_lru_.store(curve_->choice().follows_lru(), std::memory_order_relaxed);
}

void ReuseWatch::start_anew(const CapacityCurve::Options& options) {
  auto fresh = std::make_unique<CapacityCurve>(options);
  const MutexLock lock(curve_mutex_);
  work_off();
  earlier_changes_ += curve_->choice().changes();
  left_out_bits_ = fresh->left_out_bits();
  follows_lru_ = false;
  curve_ = std::move(fresh);
}

ReuseWatch::Report ReuseWatch::report(std::span<const std::uint64_t> capacities_blocks,
                                      bool with_optimum) const {
  const MutexLock lock(curve_mutex_);
  work_off();
  Report report{.requests = curve_->requests(),
                .blocks_per_s = curve_->blocks_per_s(),
                .order_changes = earlier_changes_ + curve_->choice().changes()};
  for (const std::uint64_t capacity : capacities_blocks) {
    report.points.push_back(curve_->at(capacity));
  }
  if (with_optimum) report.optimum = curve_->optimum();
  return report;
}

std::uint64_t ReuseWatch::memory_bytes() const {
  const MutexLock lock(curve_mutex_);
  return sizeof(*this) + curve_->memory_bytes();
}

}  // namespace cairn
