#pragma once

#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "tests/store/loopback.hpp"

namespace cairn::testing {

// A server on a free port of 127.0.0.1 that answers each request by a script: the bytes to send,
// and whether to close the connection after them. It serves one connection at a time.
class ScriptedServer {
 public:
  struct Answer {
    std::string bytes;
    bool closes = false;
    bool waits_for_end = false;  // sends nothing more until the other side closes
  };
  // `number` counts requests from 0.
  using Script = std::function<Answer(int number, const std::string& head)>;

  explicit ScriptedServer(Script script) : script_(std::move(script)) {
    thread_ = std::thread([this] { serve(); });
  }
  ~ScriptedServer() {
    ::shutdown(listening_.listener, SHUT_RDWR);
    {
      const std::lock_guard lock(mutex_);
      if (connection_ >= 0) ::shutdown(connection_, SHUT_RDWR);
      stopping_ = true;
    }
    thread_.join();
    ::close(listening_.listener);
  }

  std::string url() const { return "http://127.0.0.1:" + std::to_string(listening_.port); }
  int requests() const { return requests_; }
  int connections() const { return connections_; }

  static std::string ok(const std::string& body) { return with_status("200 OK", body); }
  static std::string with_status(const std::string& status, const std::string& body) {
    return "HTTP/1.1 " + status + "\r\nContent-Length: " + std::to_string(body.size()) +
           "\r\n\r\n" + body;
  }

 private:
  void serve() {
    while (true) {
      const int connection = ::accept(listening_.listener, nullptr, nullptr);
      if (connection < 0) return;
      {
        const std::lock_guard lock(mutex_);
        if (stopping_) {
          ::close(connection);
          return;
        }
        connection_ = connection;
      }
      ++connections_;
      serve_one(connection);
      const std::lock_guard lock(mutex_);
      connection_ = -1;
      ::close(connection);
    }
  }
  static std::size_t body_bytes(const std::string& head) {
    constexpr std::string_view kField = "Content-Length: ";
    const auto at = head.find(kField);
    return at == std::string::npos ? 0 : std::stoul(head.substr(at + kField.size()));
  }
  void serve_one(int connection) {
    std::string come;
    char buffer[4096];
    while (true) {
      const auto end = come.find("\r\n\r\n");
      if (end == std::string::npos) {
        const auto bytes = ::recv(connection, buffer, sizeof buffer, 0);
        if (bytes <= 0) return;
        come.append(buffer, static_cast<std::size_t>(bytes));
        continue;
      }
      const std::string head = come.substr(0, end);
      const std::size_t whole = end + 4 + body_bytes(head);
      if (come.size() < whole) {
        const auto bytes = ::recv(connection, buffer, sizeof buffer, 0);
        if (bytes <= 0) return;
        come.append(buffer, static_cast<std::size_t>(bytes));
        continue;
      }
      const Answer answer = script_(requests_++, head);
      come.erase(0, whole);
      ::send(connection, answer.bytes.data(), answer.bytes.size(), MSG_NOSIGNAL);
      if (answer.waits_for_end) {
        while (::recv(connection, buffer, sizeof buffer, 0) > 0) continue;
      }
      if (answer.closes || answer.waits_for_end) return;
    }
  }

  const Script script_;
  const Loopback listening_ = listen_on_loopback({.backlog = 16});
  std::atomic<int> requests_{0};
  std::atomic<int> connections_{0};
  std::mutex mutex_;
  int connection_ = -1;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace cairn::testing
