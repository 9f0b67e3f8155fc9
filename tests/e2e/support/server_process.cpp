#include "tests/e2e/support/server_process.hpp"

#include <csignal>
#include <stdexcept>
#include <utility>

namespace cairn::e2e {
namespace {

constexpr std::string_view kListening = "listening on http";

// The address in the line that says the server is ready.
client::Endpoint endpoint_from(const std::string& line) {
  const std::size_t begin = line.find("://", line.find(kListening)) + 3;
  const std::size_t end = line.find_first_not_of("0123456789.:", begin);
  auto endpoint = client::Endpoint::parse("http://" + line.substr(begin, end - begin));
  if (!endpoint) throw std::runtime_error("no address in '" + line + "'");
  return std::move(*endpoint);
}

}  // namespace

ServerProcess::ServerProcess(ServerSetup setup) : setup_(std::move(setup)) {
  if (setup_.data_dir.empty()) {
    own_dir_ = std::make_unique<fakes::TempDir>();
    setup_.data_dir = own_dir_->path();
  }
  std::vector<std::string> command = {setup_.program, "--listen", "127.0.0.1:0", "--data-dir",
                                      setup_.data_dir.string()};
  command.insert(command.end(), setup_.flags.begin(), setup_.flags.end());
  if (!setup_.environment.empty()) {
    command.insert(command.begin(), setup_.environment.begin(), setup_.environment.end());
    command.insert(command.begin(), "/usr/bin/env");
  }
  process_ = std::make_unique<ChildProcess>(command);
  const auto line = process_->wait_for_line(kListening);
  if (!line) {
    throw std::runtime_error(setup_.program + " does not say that it listens:\n" + output());
  }
  endpoint_ = endpoint_from(*line);
}

std::optional<int> ServerProcess::stop() {
  process_->signal(SIGTERM);
  return process_->wait();
}

void ServerProcess::kill() {
  process_->signal(SIGKILL);
  process_->wait();
}

std::string ServerProcess::output() const {
  return process_->standard_output() + process_->standard_error();
}

}  // namespace cairn::e2e
