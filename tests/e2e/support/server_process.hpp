#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "client/cache_client.hpp"
#include "client/endpoint.hpp"
#include "tests/e2e/support/child_process.hpp"
#include "tests/fakes/temp_dir.hpp"

namespace cairn::e2e {

struct ServerSetup {
  // Beside --listen and --data-dir, which are given already.
  std::vector<std::string> flags = {};
  // Kept by the test, to start again over it; empty: a folder of the server's own, removed with it.
  std::filesystem::path data_dir = {};
  std::string program = CAIRN_SERVER_PROGRAM;
  std::vector<std::string> environment = {};  // NAME=VALUE, beside the test's own
};

// A cairn-server of the test's own, on a free port of 127.0.0.1. Killed with its owner.
class ServerProcess {
 public:
  // Returns when the server says that it listens; throws std::runtime_error with all it printed
  // where it does not.
  explicit ServerProcess(ServerSetup setup = {});

  const client::Endpoint& endpoint() const { return endpoint_; }
  // As --server of another program takes it.
  std::string url() const { return "http://" + endpoint_.authority(); }
  client::CacheClient client() const { return client::CacheClient(endpoint_); }

  // SIGTERM, and waits: the exit code, or 128 + the signal that ended it; nothing where it stays.
  std::optional<int> stop();
  // Waits for the end of a server that was told to stop: as stop() tells it.
  std::optional<int> wait() { return process_->wait(); }
  // SIGKILL, and waits until it is gone.
  void kill();

  pid_t pid() const { return process_->pid(); }
  bool running() const { return process_->running(); }
  const std::filesystem::path& data_dir() const { return setup_.data_dir; }
  // All it printed so far, both streams.
  std::string output() const;

 private:
  ServerSetup setup_;
  std::unique_ptr<fakes::TempDir> own_dir_;
  std::unique_ptr<ChildProcess> process_;
  client::Endpoint endpoint_;
};

}  // namespace cairn::e2e
