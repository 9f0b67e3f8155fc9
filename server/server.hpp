#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/clock.hpp"
#include "base/log.hpp"
#include "server/config/settings.hpp"

namespace cairn {

// Checks that a server could start with these settings, without touching data, devices or the
// network. Reads the token and certificate files.
Result<> check_startable(const Settings& settings, const Clock& clock);

// The whole server: runtime, transfer scheduler, caches and HTTP. The destructor cuts off requests
// in progress.
class Server {
 public:
  // Listens at once (503 until all is ready), makes the caches, then serves. Borrows the clock and
  // the log.
  static Result<std::unique_ptr<Server>> start(const Settings& settings, const Clock& clock,
                                               Logger& log);
  ~Server();

  std::uint16_t port() const;
  // Reads the token and certificate files again. Logs one that cannot be used, and keeps what was
  // in force.
  void reload();
  // Whether its threads have worked since the last call. Call it on one thread, a second or more
  // apart.
  bool is_alive();
  // Reports on /readyz that it will stop, and serves everything for the settings' delay. Then
  // refuses new work and waits for requests in progress, up to the settings' time limit. Returns
  // false if it cut any off.
  bool drain();

 private:
  struct Parts;
  explicit Server(std::unique_ptr<Parts> parts);
  std::unique_ptr<Parts> parts_;
};

}  // namespace cairn
