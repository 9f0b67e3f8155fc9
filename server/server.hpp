#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/clock.hpp"
#include "base/log.hpp"
#include "server/config/settings.hpp"

namespace cairn {

// Whether a server could start with these settings, as far as that can be told without touching
// data, devices or the network: also the files of tokens and certificates are read.
Result<> check_startable(const Settings& settings, const Clock& clock);

// The whole server: runtime, transfer engine, caches and HTTP. The destructor cuts what is in
// progress.
class Server {
 public:
  // Listens (answering 503 until all is ready), makes the caches, then serves. Borrows the clock
  // and the log.
  static Result<std::unique_ptr<Server>> start(const Settings& settings, const Clock& clock,
                                               Logger& log);
  ~Server();

  std::uint16_t port() const;
  // Reads the files of tokens and certificates again; what cannot be used leaves those in force as
  // they are, and the log says so.
  void reload();
  // True where its threads have worked since the last call, a second and more ago. Not by two
  // threads at once.
  bool is_alive();
  // Says on /readyz that it will end, and serves everything for the settings' delay. Then refuses
  // new work, waits for what is in progress up to the settings' time. True where nothing
  // was cut.
  bool drain();

 private:
  struct Parts;
  explicit Server(std::unique_ptr<Parts> parts);
  std::unique_ptr<Parts> parts_;
};

}  // namespace cairn
