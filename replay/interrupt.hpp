#pragma once

#include <stop_token>
#include <thread>

namespace cairn::replay {

// Turns the first SIGINT or SIGTERM into a stop request, so that a replay ends cleanly and removes
// its cache. A second one ends the program. Create it before any other thread.
class Interrupt {
 public:
  Interrupt();
  ~Interrupt() { watcher_.request_stop(); }
  std::stop_token token() const { return source_.get_token(); }

 private:
  std::stop_source source_;
  std::jthread watcher_;
};

}  // namespace cairn::replay
