#include "server/http/places.hpp"

#include <algorithm>
#include <utility>
#include <vector>

#include "server/http/mailbox.hpp"

namespace cairn::http {

Place::~Place() {
  MutexLock lock(places_.mutex_);
  if (!counted_) return;
  places_.all_.erase(this);
  --places_.count_of(*this);
  if (places_.all_.empty()) places_.none_.notify_all();
}

bool Place::attach(std::shared_ptr<Mailbox> mailbox) {
  MutexLock lock(places_.mutex_);
  mailbox_ = std::move(mailbox);
  return !leaving_;
}

Place::Moved Place::move_within_limit(TimePoint now) {
  std::shared_ptr<Mailbox> other;
  {
    MutexLock lock(places_.mutex_);
    if (leaving_) return Moved::no;
    if (places_.within_ >= places_.most_) {
      Place* const first =
          places_.first_to_leave(false, rank_of(WaitsFor::bytes, TimePoint(Duration::zero())));
      if (first == nullptr) return Moved::no;
      const bool is_idle_long =
          first->rank_.load(std::memory_order_relaxed) <=
          rank_of(WaitsFor::request,
                  now - std::min<Duration>(Places::kLeastIdle, now.time_since_epoch()));
      if (!is_idle_long || places_.leaving_ >= Places::kBeyond) return Moved::soon;
      other = places_.leaves(*first);
    }
    --places_.beyond_;
    ++places_.within_;
    beyond_limit_ = false;
  }
  if (other != nullptr) Mailbox::yield(std::move(other));
  return Moved::yes;
}

void Place::stay() {
  MutexLock lock(places_.mutex_);
  if (!leaving_) return;
  --places_.leaving_;
  leaving_ = false;
  ++places_.count_of(*this);
}

void Place::count_refused() { places_.refused_.fetch_add(1, std::memory_order_relaxed); }

Places::Taken Places::take(TimePoint now) {
  std::unique_ptr<Place> place(new Place(*this));
  place->waits(WaitsFor::first_request, now);
  std::vector<std::shared_ptr<Mailbox>> others;
  bool soon = false;
  bool none = false;
  {
    MutexLock lock(mutex_);
    place->beyond_limit_ = within_ >= most_;
    // More than one, if some that were asked to leave were busy.
    while (place->beyond_limit_ && beyond_ >= kBeyond && !soon && !none) {
      Place* const first = first_to_leave(true, Place::kWorks);
      none = first == nullptr;
      soon = !none && leaving_ >= kBeyond;
      if (!none && !soon) others.push_back(leaves(*first));
    }
    if (!soon && !none) {
      all_.insert(place.get());
      place->counted_ = true;
      ++count_of(*place);
    }
  }
  for (auto& other : others) {
    if (other != nullptr) Mailbox::yield(std::move(other));
  }
  if (none) refused_.fetch_add(1, std::memory_order_relaxed);
  if (soon || none) return {.place = nullptr, .soon = soon};
  return {.place = std::move(place)};
}

std::uint32_t Places::open() const {
  MutexLock lock(mutex_);
  return static_cast<std::uint32_t>(all_.size());
}

bool Places::wait_none(std::chrono::system_clock::time_point end) const {
  MutexLock lock(mutex_);
  while (!all_.empty()) {
    if (none_.wait_until(mutex_, end) == std::cv_status::timeout) return all_.empty();
  }
  return true;
}

Place* Places::first_to_leave(bool beyond_limit, std::uint64_t rank) const {
  Place* first = nullptr;
  for (Place* const place : all_) {
    if (place->beyond_limit_ != beyond_limit || place->leaving_) continue;
    const std::uint64_t its = place->rank_.load(std::memory_order_relaxed);
    if (its >= rank) continue;
    rank = its;
    first = place;
  }
  return first;
}

std::shared_ptr<Mailbox> Places::leaves(Place& place) {
  --count_of(place);
  place.leaving_ = true;
  ++leaving_;
  return place.mailbox_;
}

std::uint32_t& Places::count_of(const Place& place) {
  if (place.leaving_) return leaving_;
  return place.beyond_limit_ ? beyond_ : within_;
}

}  // namespace cairn::http
