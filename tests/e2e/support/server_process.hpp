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
  // Added to --listen and --data-dir.
  std::vector<std::string> flags = {};
  // The test keeps it, to start a server on it again. Empty: the server's own folder, removed with
  // it.
  std::filesystem::path data_dir = {};
  std::string program = CAIRN_SERVER_PROGRAM;
  std::vector<std::string> environment = {};  // NAME=VALUE, added to the test's own
};

// The test's own cairn-server, on a free port of 127.0.0.1. The destructor kills it.
class ServerProcess {
 public:
  // Returns when the server reports that it listens; otherwise throws std::runtime_error with its
  // output.
  explicit ServerProcess(ServerSetup setup = {});

  const client::Endpoint& endpoint() const { return endpoint_; }
  // In the form that --server of another program takes.
  std::string url() const { return "http://" + endpoint_.authority(); }
  client::CacheClient client() const { return client::CacheClient(endpoint_); }

  // Sends SIGTERM and waits: the exit code, or 128 + the signal that ended it; nullopt if it does
  // not end.
  std::optional<int> stop();
  // Waits for the end of a server that is stopping; returns the same as stop().
  std::optional<int> wait() { return process_->wait(); }
  // Sends SIGKILL and waits for the end.
  void kill();

  pid_t pid() const { return process_->pid(); }
  bool running() const { return process_->running(); }
  const std::filesystem::path& data_dir() const { return setup_.data_dir; }
  // Its output so far, from both streams.
  std::string output() const;

 private:
  ServerSetup setup_;
  std::unique_ptr<fakes::TempDir> own_dir_;
  std::unique_ptr<ChildProcess> process_;
  client::Endpoint endpoint_;
};

}  // namespace cairn::e2e
