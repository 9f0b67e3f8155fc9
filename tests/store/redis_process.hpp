#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tests/e2e/support/child_process.hpp"
#include "tests/fakes/temp_dir.hpp"

namespace cairn::e2e {

// A redis-server on a free port of 127.0.0.1, without persistence. Killed with its owner.
class RedisProcess {
 public:
  // `flags`: more flags for redis-server, besides --port and --dir. `tls`: the port speaks only
  // TLS.
  explicit RedisProcess(std::vector<std::string> flags = {}, bool tls = false);

  std::uint16_t port() const { return port_; }
  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }
  std::string url() const { return (tls_ ? "rediss://" : "redis://") + address(); }
  // The output of redis-cli for a command, without the last newline.
  std::string ask(const std::vector<std::string>& command) const;
  void signal(int number) { process_->signal(number); }
  void kill();
  void start();  // again, on the same port

 private:
  const std::vector<std::string> flags_;
  const bool tls_;
  const std::uint16_t port_;
  fakes::TempDir dir_;
  std::unique_ptr<ChildProcess> process_;
};

}  // namespace cairn::e2e
