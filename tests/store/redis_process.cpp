#include "tests/store/redis_process.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <csignal>
#include <stdexcept>

namespace cairn::e2e {
namespace {

// A cluster's nodes also use the port 10,000 above this one.
constexpr std::uint16_t kMaxPort = 50'000;

std::uint16_t free_port() {
  for (int tries = 0; tries < 100; ++tries) {
    const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    ::socklen_t size = sizeof address;
    const bool bound = ::bind(fd, reinterpret_cast<sockaddr*>(&address), size) == 0 &&
                       ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) == 0;
    ::close(fd);
    const std::uint16_t port = ntohs(address.sin_port);
    if (bound && port < kMaxPort) return port;
  }
  throw std::runtime_error("there is no free port");
}

}  // namespace

RedisProcess::RedisProcess(std::vector<std::string> flags, bool tls)
    : flags_(std::move(flags)), tls_(tls), port_(free_port()) {
  start();
}

void RedisProcess::start() {
  const std::string port = std::to_string(port_);
  std::vector<std::string> command = {
      "/usr/bin/redis-server", "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir",
      dir_.path().string()};
  if (tls_) {
    command.insert(command.end(), {"--port", "0", "--tls-port", port, "--tls-auth-clients", "no"});
  } else {
    command.insert(command.end(), {"--port", port});
  }
  command.insert(command.end(), flags_.begin(), flags_.end());
  process_ = std::make_unique<ChildProcess>(command);
  if (!process_->wait_for_line("eady to accept connections")) {
    throw std::runtime_error("redis-server did not start: " + process_->standard_output());
  }
}

void RedisProcess::kill() {
  process_->signal(SIGKILL);
  process_->wait();
}

std::string RedisProcess::ask(const std::vector<std::string>& command) const {
  std::vector<std::string> words = {"/usr/bin/redis-cli", "-p", std::to_string(port_)};
  words.insert(words.end(), command.begin(), command.end());
  ChildProcess cli(words);
  cli.wait();
  std::string text = cli.standard_output();
  if (text.ends_with('\n')) text.pop_back();
  return text;
}

}  // namespace cairn::e2e
