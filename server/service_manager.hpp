#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>

namespace cairn {

// Reports the service's state to systemd, or to another listener on the socket NOTIFY_SOCKET
// (sd_notify(3)). Does nothing if there is none. Thread-safe.
class ServiceManager {
 public:
  // Reads NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID from the environment.
  static ServiceManager from_environment();

  void ready() const { send("READY=1"); }
  void stopping() const { send("STOPPING=1"); }
  void alive() const { send("WATCHDOG=1"); }
  // Call alive() more often than this. nullopt if no watchdog waits for it.
  std::optional<std::chrono::milliseconds> watchdog_period() const { return watchdog_period_; }

 private:
  void send(std::string_view state) const;

  std::string socket_path_;  // empty: no listener; '@' first: an abstract name
  std::optional<std::chrono::milliseconds> watchdog_period_;
};

}  // namespace cairn
