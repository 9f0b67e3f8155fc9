#pragma once

#include <chrono>
#include <memory>
#include <vector>

#include "base/clock.hpp"

namespace cairn::http {

class Connection;

// Holds the quick answers of one turn of a network thread's loop and sends them together at its
// end: the first one wakes the client, and the others find it awake. A wake-up takes about 8 µs in
// a virtual machine, more than a match of 64 keys. Not thread-safe.
class HeldAnswers {
 public:
  // Longest time that an answer waits for other requests; the last request may exceed it.
  static constexpr std::chrono::microseconds kMost{100};
  // Slower answers are not held: the client would lose more time for its next request than is saved
  // (writes of 64 KiB were a fifth slower).
  static constexpr std::chrono::microseconds kQuick{10};

  bool empty() const { return held_.empty(); }
  // `connection` has an answer to send. `now` may be slightly old.
  void add(std::shared_ptr<Connection> connection, TimePoint now);
  bool is_due(TimePoint now) const { return !held_.empty() && now - since_ > kMost; }
  // Sends all held answers. A no-op while it is running.
  void release();

 private:
  std::vector<std::shared_ptr<Connection>> held_;
  std::vector<std::shared_ptr<Connection>> leaving_;  // not empty while release() runs
  TimePoint since_;
};

}  // namespace cairn::http
