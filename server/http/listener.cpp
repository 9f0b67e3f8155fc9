#include "server/http/listener.hpp"

#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <cerrno>
#include <cstring>
#include <utility>

namespace cairn::http {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;

constexpr int kBacklog = 1024;
// Per turn of the loop, so that open connections get their turn in between.
constexpr int kAcceptsPerTurn = 64;
// Time for other connections to leave, which takes their threads one turn.
constexpr std::chrono::milliseconds kPause{1};

// Failures that may pass, such as an address in use, are unavailable; others are impossible.
Error cannot_listen(const std::string& what, int number) {
  const bool may_pass = number == EADDRINUSE || number == EADDRNOTAVAIL || number == ENOBUFS ||
                        number == ENOMEM || number == EMFILE || number == ENFILE;
  return {may_pass ? ErrorCode::unavailable : ErrorCode::impossible,
          what + ": " + std::strerror(number)};
}

}  // namespace

Result<ListeningSocket> listen_tcp(const std::string& host, std::uint16_t port) {
  asio::io_context io;
  boost::system::error_code ec;
  const auto found =
      tcp::resolver(io).resolve(host, std::to_string(port), tcp::resolver::passive, ec);
  const std::string where = "listening on " + host + ":" + std::to_string(port);
  if (ec) return Error{ErrorCode::not_found, where + ": " + ec.message()};
  Error last = cannot_listen(where, EADDRNOTAVAIL);
  for (const auto& entry : found) {
    const tcp::endpoint endpoint = entry.endpoint();
    const int family = endpoint.protocol().family();
    FileDescriptor fd(::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_TCP));
    // Connections of the previous server may still be in TIME_WAIT. No SO_REUSEPORT: a second
    // server could share the port silently.
    const int on = 1;
    if (!fd || ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
        ::bind(fd.get(), endpoint.data(), static_cast<socklen_t>(endpoint.size())) != 0 ||
        ::listen(fd.get(), kBacklog) != 0) {
      last = cannot_listen(where, errno);
      continue;
    }
    tcp::endpoint taken;
    socklen_t size = static_cast<socklen_t>(taken.capacity());
    if (::getsockname(fd.get(), taken.data(), &size) != 0) return cannot_listen(where, errno);
    return ListeningSocket{std::move(fd), family, taken.port()};
  }
  return last;
}

Result<UnixSocketFile> UnixSocketFile::listen(const std::string& path, const UnixAccess& access) {
  const std::string where = "listening on unix:" + path;
  boost::system::error_code ec;
  asio::local::stream_protocol::endpoint endpoint;
  if (path.size() >= endpoint.capacity() - offsetof(sockaddr_un, sun_path)) {
    return Error{ErrorCode::impossible, where + ": the path is longer than a socket's may be"};
  }
  endpoint.path(path);
  const auto size = static_cast<socklen_t>(endpoint.size());

  struct stat there {};
  if (::lstat(path.c_str(), &there) == 0) {
    if (!S_ISSOCK(there.st_mode)) {
      return Error{ErrorCode::impossible, where + ": there is a file that is no socket"};
    }
    FileDescriptor probe(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    const bool refused =
        probe && ::connect(probe.get(), endpoint.data(), size) != 0 && errno == ECONNREFUSED;
    if (!refused) {
      return Error{ErrorCode::unavailable, where + ": another server is listening there"};
    }
    if (::unlink(path.c_str()) != 0) return cannot_listen(where, errno);
  }

  FileDescriptor fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  // Linux gives the file the mode of the socket, so others cannot connect too early.
  if (!fd || ::fchmod(fd.get(), S_IRUSR | S_IWUSR) != 0 ||
      ::bind(fd.get(), endpoint.data(), size) != 0) {
    return cannot_listen(where, errno);
  }
  // Others can connect only after listen(); set the file's rights before.
  if (access.group && ::chown(path.c_str(), static_cast<uid_t>(-1), *access.group) != 0) {
    const Error why =
        cannot_listen(where + ": its group cannot be " + std::to_string(*access.group), errno);
    ::unlink(path.c_str());
    return why;
  }
  if (::chmod(path.c_str(), access.file_mode()) != 0 || ::listen(fd.get(), kBacklog) != 0) {
    return cannot_listen(where, errno);
  }
  return UnixSocketFile(path, ListeningSocket{std::move(fd), AF_UNIX, 0});
}

UnixSocketFile::UnixSocketFile(std::string path, ListeningSocket socket)
    : path_(std::move(path)), socket_(std::move(socket)) {
  struct stat ours {};
  if (::lstat(path_.c_str(), &ours) == 0) {
    device_ = ours.st_dev;
    inode_ = ours.st_ino;
  }
}

UnixSocketFile::~UnixSocketFile() {
  struct stat there {};
  if (!path_.empty() && ::lstat(path_.c_str(), &there) == 0 && there.st_dev == device_ &&
      there.st_ino == inode_) {
    ::unlink(path_.c_str());
  }
}

Listener::Listener(asio::io_context& io, ListeningSocket socket, Taker taker, Logger& log)
    : family_(socket.family),
      socket_(io, socket.fd.release()),
      pause_(io),
      taker_(std::move(taker)),
      log_(log) {}

void Listener::close() {
  boost::system::error_code ignored;
  socket_.close(ignored);
  pause_.cancel();
  held_.reset();
}

void Listener::resume() {
  if (!waits_ && socket_.is_open()) wait();
}

void Listener::wait() {
  socket_.async_wait(asio::posix::descriptor_base::wait_read, [this](auto error) {
    waits_ = false;
    if (!error) accept_waiting();
  });
  waits_ = true;
}

void Listener::pause() {
  pause_.expires_after(kPause);
  pause_.async_wait([this](auto error) {
    waits_ = false;
    if (error || !socket_.is_open()) return;
    if (hand_over(*std::exchange(held_, std::nullopt))) accept_waiting();
  });
  waits_ = true;
}

bool Listener::hand_over(Peer peer) {
  if (taker_(peer)) return true;
  held_ = std::move(peer);
  pause();
  return false;
}

void Listener::accept_waiting() {
  for (int i = 0; i < kAcceptsPerTurn && socket_.is_open(); ++i) {
    FileDescriptor fd(
        ::accept4(socket_.native_handle(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (fd) {
      if (!hand_over(Peer{std::move(fd), family_})) return;
      continue;
    }
    if (errno == EAGAIN) break;
    if (errno == ECONNABORTED || errno == EINTR) continue;
    // The socket stays readable, so waiting at once would spin. resume() waits again.
    return log_.warning("cannot accept a connection", {{"reason", std::strerror(errno)}});
  }
  if (socket_.is_open()) wait();
}

}  // namespace cairn::http
