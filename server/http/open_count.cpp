#include "server/http/open_count.hpp"

#include <chrono>

namespace cairn::http {

OpenCount::Place OpenCount::take_place() {
  MutexLock lock(mutex_);
  if (open_ == most_) return nullptr;
  ++open_;
  return Place(this);
}

void OpenCount::remove() {
  MutexLock lock(mutex_);
  if (--open_ == 0) none_.notify_all();
}

std::uint32_t OpenCount::value() const {
  MutexLock lock(mutex_);
  return open_;
}

bool OpenCount::wait_none(std::uint32_t timeout_ms) const {
  MutexLock lock(mutex_);
  // To the system clock: gcc 12's thread sanitizer does not see the wait on the steady one.
  const auto end = std::chrono::system_clock::now() + std::chrono::milliseconds(timeout_ms);
  while (open_ != 0) {
    if (none_.wait_until(mutex_, end) == std::cv_status::timeout) return open_ == 0;
  }
  return true;
}

}  // namespace cairn::http
