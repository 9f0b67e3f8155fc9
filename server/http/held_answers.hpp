#pragma once

#include <chrono>
#include <memory>
#include <vector>

#include "base/clock.hpp"

namespace cairn::http {

class Connection;

// The quick answers of one turn of a network thread's loop, which leave together at its end: the
// first one wakes the client, and the others find it awake. A wake-up takes some 8 µs in a virtual
// machine, which is more than a match of 64 keys. Used on one thread.
class HeldAnswers {
 public:
  // No answer waits longer for other requests, but for the last of them.
  static constexpr std::chrono::microseconds kMost{100};
  // An answer that took longer is not held: its client would have less time for its next request
  // than is saved (writes of 64 KiB were a fifth slower).
  static constexpr std::chrono::microseconds kQuick{10};

  bool empty() const { return held_.empty(); }
  // `connection` has an answer to send. `now` may be a little while ago.
  void add(std::shared_ptr<Connection> connection, TimePoint now);
  bool is_due(TimePoint now) const { return !held_.empty() && now - since_ > kMost; }
  // Has each go on. Nothing where that is under way already.
  void release();

 private:
  std::vector<std::shared_ptr<Connection>> held_;
  std::vector<std::shared_ptr<Connection>> leaving_;  // not empty while they do
  TimePoint since_;
};

}  // namespace cairn::http
