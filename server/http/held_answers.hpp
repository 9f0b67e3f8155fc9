#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "base/clock.hpp"

namespace cairn::http {

class Connection;

// The answers of one turn of a network thread's loop, which leave together at its end: the first
// one wakes the client, and the others find it awake. With 16 connections a match takes 0.7 of the
// CPU that it takes where each answer leaves by itself (bench/over_http.py). Used on one thread.
class HeldAnswers {
 public:
  // No answer waits longer for other requests, but for the last of them.
  static constexpr std::chrono::microseconds kMost{100};

  bool empty() const { return held_.empty(); }
  // `connection` has an answer to send. `now` may be a little while ago.
  void add(std::shared_ptr<Connection> connection, TimePoint now);
  bool is_due(TimePoint now) const { return !held_.empty() && now - since_ > kMost; }
  // True where answers have come since the last call: another turn may bring more.
  bool has_grown() { return std::exchange(seen_, held_.size()) < held_.size(); }
  // All are sent, and then their connections go on: by then the first of the clients may have asked
  // again. Nothing where that is under way already.
  void release();

 private:
  std::vector<std::shared_ptr<Connection>> held_;
  std::vector<std::shared_ptr<Connection>> leaving_;  // not empty while they do
  std::size_t seen_ = 0;
  TimePoint since_;
};

}  // namespace cairn::http
