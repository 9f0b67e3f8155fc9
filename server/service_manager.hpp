#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>

namespace cairn {

// Tells systemd, or whoever listens on the socket that NOTIFY_SOCKET names, how the service is
// (sd_notify(3)). Does nothing where nobody listens. Thread-safe.
class ServiceManager {
 public:
  // Reads NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID of the process's environment.
  static ServiceManager from_environment();

  void ready() const { send("READY=1"); }
  void stopping() const { send("STOPPING=1"); }
  void alive() const { send("WATCHDOG=1"); }
  // How often alive() is to be said at the least; nothing where nobody waits for it.
  std::optional<std::chrono::milliseconds> watchdog_period() const { return watchdog_period_; }

 private:
  void send(std::string_view state) const;

  std::string socket_path_;  // empty: nobody listens; '@' first: an abstract name
  std::optional<std::chrono::milliseconds> watchdog_period_;
};

}  // namespace cairn
