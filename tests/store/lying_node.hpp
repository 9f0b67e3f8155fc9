#pragma once

#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "tests/store/loopback.hpp"
#include "transport/store/redis_settings.hpp"

namespace cairn::testing {

// A node of a store that sends a scripted response to each command, on any number of connections.
// LyingNode::alone() answers as a server outside a cluster.
class LyingNode {
 public:
  using Words = std::vector<std::string>;
  struct Answer {
    std::string bytes;
    // Sent repeatedly after `bytes`, until the other side closes.
    std::string repeated = {};
    std::chrono::milliseconds pause{0};  // before each repetition
  };
  using Script = std::function<Answer(const Words& command)>;

  explicit LyingNode(Script script) : script_(std::move(script)) {
    acceptor_ = std::thread([this] { accept(); });
  }
  ~LyingNode() {
    stopping_ = true;
    ::shutdown(listening_.listener, SHUT_RDWR);
    {
      const std::lock_guard lock(mutex_);
      for (const int connection : connections_) ::shutdown(connection, SHUT_RDWR);
    }
    acceptor_.join();
    for (std::thread& thread : threads_) thread.join();
    for (const int connection : connections_) ::close(connection);
    ::close(listening_.listener);
  }

  std::uint16_t port() const { return listening_.port; }
  RedisSettings settings() const { return {.endpoints = {{"127.0.0.1", port()}}}; }
  std::uint64_t sent_bytes() const { return sent_bytes_; }
  int connections() const { return accepted_; }

  static Answer alone(const Words& command) {
    if (command.front() == "CLUSTER")
      return {"-ERR This instance has cluster support disabled\r\n"};
    if (command.front() == "ROLE") return {"*3\r\n$6\r\nmaster\r\n:0\r\n*0\r\n"};
    return {":0\r\n"};
  }
  static std::string bulk(std::string_view text) {
    return "$" + std::to_string(text.size()) + "\r\n" + std::string(text) + "\r\n";
  }

 private:
  void accept() {
    while (!stopping_) {
      const int connection = ::accept(listening_.listener, nullptr, nullptr);
      if (connection < 0) return;
      ++accepted_;
      const std::lock_guard lock(mutex_);
      connections_.push_back(connection);
      threads_.emplace_back([this, connection] { serve(connection); });
    }
  }
  void serve(int connection) {
    std::string come;
    char buffer[4096];
    while (true) {
      Words command;
      while (!take_command(come, command)) {
        const auto bytes = ::recv(connection, buffer, sizeof buffer, 0);
        if (bytes <= 0) return;
        come.append(buffer, static_cast<std::size_t>(bytes));
      }
      const Answer answer = script_(command);
      if (!send(connection, answer.bytes)) return;
      while (!answer.repeated.empty() && !stopping_) {
        std::this_thread::sleep_for(answer.pause);
        if (!send(connection, answer.repeated)) {
          ::shutdown(connection, SHUT_RDWR);
          return;
        }
      }
    }
  }
  bool send(int connection, std::string_view bytes) {
    while (!bytes.empty()) {
      const auto sent = ::send(connection, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) return false;
      bytes.remove_prefix(static_cast<std::size_t>(sent));
      sent_bytes_ += static_cast<std::uint64_t>(sent);
    }
    return true;
  }
  static bool take_line(std::string& come, std::size_t& at, std::string& line) {
    const auto end = come.find("\r\n", at);
    if (end == std::string::npos) return false;
    line = come.substr(at, end - at);
    at = end + 2;
    return true;
  }
  static bool take_command(std::string& come, Words& words) {
    words.clear();
    std::size_t at = 0;
    std::string line;
    if (!take_line(come, at, line)) return false;
    for (auto left = std::stoul(line.substr(1)); left > 0; --left) {
      if (!take_line(come, at, line)) return false;
      const std::size_t bytes = std::stoul(line.substr(1));
      if (come.size() < at + bytes + 2) return false;
      words.push_back(come.substr(at, bytes));
      at += bytes + 2;
    }
    come.erase(0, at);
    return true;
  }

  const Script script_;
  const Loopback listening_ = listen_on_loopback({.backlog = 128});
  std::atomic<bool> stopping_{false};
  std::atomic<std::uint64_t> sent_bytes_{0};
  std::atomic<int> accepted_{0};
  std::mutex mutex_;
  std::vector<int> connections_;
  std::vector<std::thread> threads_;  // of connections
  std::thread acceptor_;
};

}  // namespace cairn::testing
