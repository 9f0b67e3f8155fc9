#include "transport/collective/link_socket.hpp"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>

namespace cairn {
namespace {

// One connection per rank, and as many from strangers.
constexpr int kBacklog = 512;

Error failed(const std::string& what, int error) {
  return {ErrorCode::unavailable, what + ": " + std::strerror(error)};
}

struct FreeAddresses {
  void operator()(addrinfo* list) const { ::freeaddrinfo(list); }
};

Result<std::unique_ptr<addrinfo, FreeAddresses>> resolve(const LinkAddress& address) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  addrinfo* list = nullptr;
  const int error =
      ::getaddrinfo(address.host.c_str(), std::to_string(address.port).c_str(), &hints, &list);
  if (error != 0) {
    return Error{ErrorCode::unavailable, "host " + address.host + ": " + ::gai_strerror(error)};
  }
  return std::unique_ptr<addrinfo, FreeAddresses>(list);
}

using NameOf = int (*)(int, sockaddr*, socklen_t*);

std::string host_of(int fd, NameOf name_of) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  std::array<char, NI_MAXHOST> host{};
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  if (name_of(fd, generic, &length) != 0 ||
      ::getnameinfo(generic, length, host.data(), host.size(), nullptr, 0, NI_NUMERICHOST) != 0) {
    return {};
  }
  return host.data();
}

}  // namespace

void LinkSocket::close() {
  if (fd_ >= 0) ::close(std::exchange(fd_, -1));
}

int poll_timeout_ms(std::chrono::steady_clock::time_point until) {
  const auto left = until - std::chrono::steady_clock::now();
  const auto ms = std::chrono::ceil<std::chrono::milliseconds>(left).count();
  return static_cast<int>(std::clamp<std::int64_t>(ms, 0, 1 << 30));
}

Result<> wait_for_socket(int fd, short events, const LinkWait& wait) {
  std::array<pollfd, 2> asked{{{.fd = fd, .events = events, .revents = 0},
                               {.fd = wait.stop_fd, .events = POLLIN, .revents = 0}}};
  while (true) {
    const int timeout = poll_timeout_ms(wait.until);
    const int found = ::poll(asked.data(), asked.size(), timeout);
    if (found < 0 && errno != EINTR) return failed("poll", errno);
    if (found > 0 && asked[1].revents != 0) return Error{ErrorCode::cancelled, "stopped"};
    if (found > 0) return {};
    if (timeout == 0) return Error{ErrorCode::deadline_exceeded, "no answer in time"};
  }
}

Result<LinkSocket> listen_on(const LinkAddress& address) {
  auto resolved = resolve(address);
  if (!resolved) return std::move(resolved).error();
  const addrinfo& at = **resolved;
  LinkSocket socket(::socket(at.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) return failed("socket", errno);
  if (::bind(socket.fd(), at.ai_addr, at.ai_addrlen) != 0) {
    return failed("cannot listen on " + address.text(), errno);
  }
  if (::listen(socket.fd(), kBacklog) != 0) return failed("listen", errno);
  return socket;
}

std::uint16_t port_of(const LinkSocket& listener) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  if (::getsockname(listener.fd(), reinterpret_cast<sockaddr*>(&address), &length) != 0) return 0;
  // sockaddr_in and sockaddr_in6 have the port at the same offset.
  return ntohs(reinterpret_cast<const sockaddr_in&>(address).sin_port);
}

std::string peer_host(const LinkSocket& socket) { return host_of(socket.fd(), ::getpeername); }
std::string own_host(const LinkSocket& socket) { return host_of(socket.fd(), ::getsockname); }

Result<LinkSocket> connect_to(const LinkAddress& address, const LinkWait& wait) {
  auto resolved = resolve(address);
  if (!resolved) return std::move(resolved).error();
  const addrinfo& at = **resolved;
  LinkSocket socket(::socket(at.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) return failed("socket", errno);
  const std::string what = "cannot connect to " + address.text();
  if (::connect(socket.fd(), at.ai_addr, at.ai_addrlen) != 0) {
    if (errno != EINPROGRESS) return failed(what, errno);
    CAIRN_TRY(wait_for_socket(socket.fd(), POLLOUT, wait));
    int error = 0;
    socklen_t length = sizeof error;
    if (::getsockopt(socket.fd(), SOL_SOCKET, SO_ERROR, &error, &length) != 0) error = errno;
    if (error != 0) return failed(what, error);
  }
  return socket;
}

LinkSocket accept_from(const LinkSocket& listener) {
  return LinkSocket(::accept4(listener.fd(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
}

void prepare_link(const LinkSocket& socket) {
  // Fails on a Unix socket, which does not need it.
  const int on = 1;
  static_cast<void>(::setsockopt(socket.fd(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on));
}

Result<> read_all(const LinkSocket& socket, std::span<std::byte> bytes, const LinkWait& wait) {
  while (!bytes.empty()) {
    const ssize_t got = ::recv(socket.fd(), bytes.data(), bytes.size(), 0);
    if (got > 0) {
      bytes = bytes.subspan(static_cast<std::size_t>(got));
    } else if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      CAIRN_TRY(wait_for_socket(socket.fd(), POLLIN, wait));
    } else if (got == 0 || errno != EINTR) {
      return Error{ErrorCode::peer_lost, "the other side has closed the connection"};
    }
  }
  return {};
}

Result<> write_all(const LinkSocket& socket, std::span<const std::byte> bytes,
                   const LinkWait& wait) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(socket.fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent >= 0) {
      bytes = bytes.subspan(static_cast<std::size_t>(sent));
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      CAIRN_TRY(wait_for_socket(socket.fd(), POLLOUT, wait));
    } else if (errno != EINTR) {
      return Error{ErrorCode::peer_lost, "the other side has closed the connection"};
    }
  }
  return {};
}

}  // namespace cairn
