#include "tests/replay/scripted_server.hpp"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstring>
#include <optional>
#include <stdexcept>
#include <utility>

namespace cairn::replay_test {
namespace {

void must(bool done, const char* what) {
  if (!done) throw std::runtime_error(std::string(what) + ": " + std::strerror(errno));
}

std::size_t content_length(const std::string& head) {
  constexpr std::string_view name = "\r\nContent-Length: ";
  const std::size_t at = head.find(name);
  return at == std::string::npos ? 0 : std::stoul(head.substr(at + name.size()));
}

// Reads one request from the socket; nullopt at its end.
std::optional<ReceivedRequest> receive(int fd, std::string& buffer) {
  while (true) {
    const std::size_t head_end = buffer.find("\r\n\r\n");
    if (head_end != std::string::npos) {
      ReceivedRequest request;
      request.head = buffer.substr(0, head_end + 4);
      const std::size_t length = content_length(request.head);
      if (buffer.size() >= request.head.size() + length) {
        request.body = buffer.substr(request.head.size(), length);
        buffer.erase(0, request.head.size() + length);
        const std::size_t blank = request.head.find(' ');
        request.method = request.head.substr(0, blank);
        request.target =
            request.head.substr(blank + 1, request.head.find(' ', blank + 1) - blank - 1);
        return request;
      }
    }
    std::array<char, 65536> bytes;
    const ssize_t received = ::recv(fd, bytes.data(), bytes.size(), 0);
    if (received <= 0) return std::nullopt;
    buffer.append(bytes.data(), static_cast<std::size_t>(received));
  }
}

bool send_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent <= 0) return false;
    bytes.remove_prefix(static_cast<std::size_t>(sent));
  }
  return true;
}

int listen_tcp(client::Endpoint& endpoint) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  must(fd >= 0, "socket");
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  must(::bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0, "bind");
  must(::listen(fd, 16) == 0, "listen");
  socklen_t length = sizeof address;
  must(::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) == 0, "getsockname");
  endpoint.host = "127.0.0.1";
  endpoint.port = std::to_string(ntohs(address.sin_port));
  return fd;
}

int listen_unix(const std::string& path) {
  const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  must(fd >= 0, "socket");
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  must(path.size() < sizeof address.sun_path, "path");
  std::memcpy(address.sun_path, path.data(), path.size());
  must(::bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0, "bind");
  must(::listen(fd, 16) == 0, "listen");
  return fd;
}

}  // namespace

ScriptedAnswer answer(unsigned status, std::string body, std::string_view content_type,
                      std::string_view more_headers) {
  std::string text = "HTTP/1.1 " + std::to_string(status) + " Whatever\r\nContent-Length: ";
  text.append(std::to_string(body.size())).append("\r\nContent-Type: ").append(content_type);
  text.append("\r\n").append(more_headers).append("\r\n").append(body);
  return {{std::move(text)}};
}

ScriptedServer::ScriptedServer(Handle handle) : handle_(std::move(handle)) {
  listener_ = listen_tcp(endpoint_);
  acceptor_ = std::jthread([this] { accept_all(); });
}

ScriptedServer::ScriptedServer(Handle handle, const std::string& unix_path)
    : handle_(std::move(handle)) {
  endpoint_.unix_path = unix_path;
  listener_ = listen_unix(unix_path);
  acceptor_ = std::jthread([this] { accept_all(); });
}

ScriptedServer::~ScriptedServer() {
  ::shutdown(listener_, SHUT_RDWR);
  acceptor_.join();
  {
    const std::lock_guard lock(mutex_);
    for (const int fd : open_) ::shutdown(fd, SHUT_RDWR);
  }
  threads_.clear();
  ::close(listener_);
}

std::size_t ScriptedServer::connections() const {
  const std::lock_guard lock(mutex_);
  return threads_.size();
}

void ScriptedServer::accept_all() {
  while (true) {
    const int fd = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (fd < 0) return;
    const int on = 1;
    ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    const std::lock_guard lock(mutex_);
    open_.insert(fd);
    threads_.emplace_back([this, fd, number = threads_.size()] { serve(fd, number); });
  }
}

void ScriptedServer::serve(int fd, std::size_t number) {
  std::string buffer;
  while (auto request = receive(fd, buffer)) {
    request->connection = number;
    const ScriptedAnswer reply = handle_(*request);
    for (std::size_t i = 0; i < reply.pieces.size(); ++i) {
      // With this delay the client nearly always receives the pieces one by one. No test depends on
      // it.
      if (i > 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      if (!send_all(fd, reply.pieces[i])) break;
    }
    if (reply.close) break;
  }
  const std::lock_guard lock(mutex_);
  open_.erase(fd);
  ::close(fd);
}

}  // namespace cairn::replay_test
