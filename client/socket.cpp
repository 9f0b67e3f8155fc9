#include "client/socket.hpp"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <system_error>
#include <utility>

namespace cairn::client {
namespace {

// The kernel's limit (UIO_MAXIOV) on the pieces of one call.
constexpr std::size_t kMaxPieces = 1024;

ClientError failure(const char* code, const std::string& what, int error) {
  return {0, code, what + ": " + std::generic_category().message(error)};
}

ClientError io_failure(const std::string& what) {
  // A socket with a timeout returns EAGAIN when the timeout has passed.
  if (errno == EAGAIN || errno == EWOULDBLOCK) return {0, kTimeout, what + ": timed out"};
  return failure(kClosedEarly, what, errno);
}

void set_timeouts(int fd, std::uint32_t timeout_ms) {
  timeval bound{};
  bound.tv_sec = timeout_ms / 1000;
  bound.tv_usec = static_cast<suseconds_t>(timeout_ms % 1000) * 1000;
  ::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &bound, sizeof bound);
  ::setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &bound, sizeof bound);
}

// Returns 0, or the errno of the failure; the descriptor is then closed.
int open_connected(int family, const sockaddr* address, socklen_t length, std::uint32_t timeout_ms,
                   int& fd) {
  fd = ::socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return errno;
  set_timeouts(fd, timeout_ms);
  if (::connect(fd, address, length) == 0) {
    // Requests are written whole: waiting for more data would only delay them.
    const int on = 1;
    if (family != AF_UNIX) ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    return 0;
  }
  const int error = errno == EINPROGRESS ? ETIMEDOUT : errno;
  ::close(fd);
  return error;
}

Answer<int> connect_unix(const std::string& path, std::uint32_t timeout_ms) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) return failure(kNotConnected, path, ENAMETOOLONG);
  std::memcpy(address.sun_path, path.data(), path.size());
  int fd = -1;
  const int error = open_connected(AF_UNIX, reinterpret_cast<const sockaddr*>(&address),
                                   sizeof address, timeout_ms, fd);
  if (error != 0) return failure(kNotConnected, "unix:" + path, error);
  return fd;
}

Answer<int> connect_tcp(const Endpoint& endpoint, std::uint32_t timeout_ms) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* raw = nullptr;
  const int refusal = ::getaddrinfo(endpoint.host.c_str(), endpoint.port.c_str(), &hints, &raw);
  if (refusal != 0) {
    return ClientError{0, kNotConnected, endpoint.authority() + ": " + ::gai_strerror(refusal)};
  }
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> found(raw, &::freeaddrinfo);
  int error = EADDRNOTAVAIL;
  for (const addrinfo* one = found.get(); one != nullptr; one = one->ai_next) {
    int fd = -1;
    error = open_connected(one->ai_family, one->ai_addr, one->ai_addrlen, timeout_ms, fd);
    if (error == 0) return fd;
  }
  return failure(kNotConnected, endpoint.authority(), error);
}

}  // namespace

Answer<Socket> Socket::connect(const Endpoint& endpoint, std::uint32_t timeout_ms,
                               const TlsFiles& tls) {
  auto fd = endpoint.unix_path.empty() ? connect_tcp(endpoint, timeout_ms)
                                       : connect_unix(endpoint.unix_path, timeout_ms);
  if (!fd) return std::move(fd).error();
  Socket socket(*fd);
  if (!endpoint.tls) return socket;
  auto channel = TlsChannel::open({.fd = *fd, .host = endpoint.host, .files = tls});
  if (!channel) {
    ClientError error = std::move(channel).error();
    error.detail = endpoint.authority() + ": " + error.detail;
    return error;
  }
  socket.tls_ = std::move(*channel);
  return socket;
}

Socket::~Socket() {
  tls_.reset();  // sends close_notify
  if (fd_ >= 0) ::close(fd_);
}

Socket::Socket(Socket&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)),
      arrived_(std::move(other.arrived_)),
      tls_(std::exchange(other.tls_, std::nullopt)) {}

Socket& Socket::operator=(Socket&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(arrived_, other.arrived_);
  std::swap(tls_, other.tls_);
  return *this;
}

Answer<std::size_t> Socket::send_some(std::span<iovec> pieces, const PassedFiles& files) {
  if (tls_) return pieces.front().iov_len == 0 ? std::size_t{0} : tls_->send(pieces.front());
  msghdr message{};
  message.msg_iov = pieces.data();
  message.msg_iovlen = std::min(pieces.size(), kMaxPieces);
  FileControl control;
  control.attach(message, files);
  while (true) {
    const ssize_t sent = ::sendmsg(fd_, &message, MSG_NOSIGNAL);
    if (sent >= 0) return static_cast<std::size_t>(sent);
    if (errno != EINTR) return io_failure("sending a request");
  }
}

Answer<> Socket::send(std::vector<iovec>& pieces, PassedFiles files) {
  std::size_t first = 0;
  while (first < pieces.size()) {
    auto sent = send_some(std::span(pieces).subspan(first), files);
    if (!sent) return std::move(sent).error();
    files.clear();
    std::size_t left = *sent;
    while (first < pieces.size() && left >= pieces[first].iov_len) left -= pieces[first++].iov_len;
    if (left > 0) {
      pieces[first].iov_base = static_cast<std::byte*>(pieces[first].iov_base) + left;
      pieces[first].iov_len -= left;
    }
  }
  return {};
}

Answer<std::size_t> Socket::receive(std::span<const iovec> room) {
  if (tls_) return tls_->receive(room.front());
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(room.data());
  message.msg_iovlen = std::min(room.size(), kMaxPieces);
  FileControl control;
  while (true) {
    control.make_room(message);
    const ssize_t received = ::recvmsg(fd_, &message, MSG_CMSG_CLOEXEC);
    if (received >= 0) {
      FileControl::take(message, arrived_);
      return static_cast<std::size_t>(received);
    }
    if (errno != EINTR) return io_failure("receiving an answer");
  }
}

bool Socket::stale() const {
  if (tls_ && tls_->has_more()) return true;
  std::byte one;
  const ssize_t received = ::recv(fd_, &one, 1, MSG_PEEK | MSG_DONTWAIT);
  return received >= 0 || (errno != EAGAIN && errno != EWOULDBLOCK);
}

}  // namespace cairn::client
