#include "blockmgr/index/event_ring.hpp"

#include <algorithm>

#include "base/assert.hpp"

namespace cairn {

std::string_view to_string(BlockEventKind kind) {
  switch (kind) {
    case BlockEventKind::stored:
      return "stored";
    case BlockEventKind::removed:
      return "removed";
    case BlockEventKind::cleared:
      return "cleared";
  }
  invariant_broken("kind is an enumerator", "an event would be published as another");
}

std::string_view to_string(EventTier tier) {
  const auto own = tier_of(tier);
  return own ? to_string(*own) : "shared";
}

EventRing::EventRing(const Options& options)
    : capacity_(options.capacity), first_id_(options.first_id), next_id_(options.first_id) {
  CAIRN_ASSERT(options.capacity > 0, "there would be no place for an event");
  events_.reserve(capacity_);
}

void EventRing::open(std::uint32_t cache, std::string name) {
  MutexLock lock(mutex_);
  while (!closed_.empty() && closed_.front().last_id < oldest_id()) {
    names_.erase(closed_.front().cache);
    closed_.pop_front();
  }
  names_.emplace(cache, Named{.name = std::move(name)});
}

void EventRing::close(std::uint32_t cache, std::int64_t unix_ms) {
  MutexLock lock(mutex_);
  append_locked({.unix_ms = unix_ms, .cache = cache, .kind = BlockEventKind::cleared});
  if (const auto at = names_.find(cache); at != names_.end()) at->second.is_open = false;
  closed_.push_back({.last_id = next_id_ - 1, .cache = cache});
}

void EventRing::append(BlockEvent event) {
  MutexLock lock(mutex_);
  append_locked(std::move(event));
}

void EventRing::append_if_open(BlockEvent event) {
  MutexLock lock(mutex_);
  const auto at = names_.find(event.cache);
  if (at != names_.end() && at->second.is_open) append_locked(std::move(event));
}

void EventRing::append_locked(BlockEvent&& event) {
  event.id = next_id_++;
  if (events_.size() < capacity_) {
    events_.push_back(std::move(event));
  } else {
    events_[place_of(event.id)] = std::move(event);
  }
}

std::uint64_t EventRing::oldest_id() const { return next_id_ - events_.size(); }

std::uint64_t EventRing::next_id() const {
  MutexLock lock(mutex_);
  return next_id_;
}

EventRing::Read EventRing::read(std::uint64_t id, std::span<BlockEvent> out) const {
  MutexLock lock(mutex_);
  Read read;
  const std::uint64_t oldest = oldest_id();
  if (id > next_id_) {  // an id of a run whose clock was ahead
    read.lost = 1;
    id = next_id_;
  } else if (id < oldest) {
    read.lost = oldest - std::max(id, first_id_);
    if (id < first_id_) ++read.lost;  // the number lost from earlier runs is unknown
    id = oldest;
  }
  read.count = static_cast<std::size_t>(std::min<std::uint64_t>(out.size(), next_id_ - id));
  for (std::size_t i = 0; i < read.count; ++i) out[i] = events_[place_of(id + i)];
  read.next_id = id + read.count;
  return read;
}

std::string EventRing::cache_name(std::uint32_t cache) const {
  MutexLock lock(mutex_);
  const auto at = names_.find(cache);
  return at == names_.end() ? std::string() : at->second.name;
}

}  // namespace cairn
