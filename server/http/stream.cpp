#include "server/http/stream.hpp"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <boost/asio/ip/tcp.hpp>
#include <cerrno>
#include <optional>
#include <string>

#include "base/assert.hpp"
#include "server/http/unix_access.hpp"

namespace cairn::http {
namespace {

namespace ip = boost::asio::ip;
using ip::tcp;

Stream::Moved outcome_of(ssize_t bytes) {
  if (bytes > 0) return {Stream::Outcome::moved, static_cast<std::size_t>(bytes)};
  if (bytes < 0 && (errno == EAGAIN || errno == EINTR)) return {Stream::Outcome::would_block, 0};
  return {Stream::Outcome::ended, 0};
}

Stream::Moved outcome_of(TlsSession::Moved moved, TlsSession::Wants& wants) {
  if (moved.bytes > 0) return {Stream::Outcome::moved, moved.bytes};
  if (moved.wants == TlsSession::Wants::ended) return {Stream::Outcome::ended, 0};
  wants = moved.wants;
  return {Stream::Outcome::would_block, 0};
}

using AskForEnd = int (*)(int, sockaddr*, socklen_t*);  // getsockname, getpeername

std::optional<tcp::endpoint> end_of(int fd, AskForEnd ask) {
  tcp::endpoint end;
  auto size = static_cast<socklen_t>(end.capacity());
  if (ask(fd, end.data(), &size) != 0) return std::nullopt;
  return end;
}

// Shows an IPv4 address as such, even on an IPv6 socket.
std::string text_of(const ip::address& address) {
  if (address.is_v6() && address.to_v6().is_v4_mapped()) {
    return ip::make_address_v4(ip::v4_mapped, address.to_v6()).to_string();
  }
  return address.to_string();
}

std::optional<ConnectionEnds> ends_of(const Peer& peer) {
  if (peer.family == AF_UNIX)
    return ConnectionEnds{.remote = "unix", .uid = peer_user(peer.fd.get())};
  const auto local = end_of(peer.fd.get(), ::getsockname);
  const auto remote = end_of(peer.fd.get(), ::getpeername);
  if (!local || !remote) return std::nullopt;
  const std::string address = text_of(remote->address());
  const bool is_v6 = address.find(':') != std::string::npos;
  return ConnectionEnds{
      .local_address = text_of(local->address()),
      .remote = (is_v6 ? "[" + address + "]" : address) + ":" + std::to_string(remote->port())};
}

msghdr message_of(std::span<iovec> pieces) {
  msghdr message{};
  message.msg_iov = pieces.data();
  message.msg_iovlen = pieces.size();
  return message;
}

}  // namespace

bool Stream::open(Peer peer, const TlsIdentity* identity) {
  auto ends = ends_of(peer);
  if (!ends) return false;  // already closed
  ends_ = std::move(*ends);
  const bool is_tcp = peer.family != AF_UNIX;
  if (is_tcp) {
    // A response is one write and must not wait for the acknowledgement of the previous one.
    const int on = 1;
    ::setsockopt(peer.fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  }
  boost::system::error_code ec;
  socket_.assign({peer.family, is_tcp ? IPPROTO_TCP : 0}, peer.fd.get(), ec);
  if (ec) return false;
  peer.fd.release();
  if (identity != nullptr && is_tcp) {
    tls_ = identity->accept(socket_.native_handle());
    return tls_ != nullptr;
  }
  passes_files_ = !is_tcp;
  take_files();
  return true;
}

Stream::Moved Stream::try_read(std::span<iovec> room) {
  if (tls_ != nullptr) {
    const Moved moved = outcome_of(tls_->read(room), read_wants_);
    TrafficCount::add(traffic_.received, moved.bytes);
    return moved;
  }
  msghdr message = message_of(room);
  FileControl control;
  const bool has_room = takes_files_ && files_.has_room();
  if (has_room) control.make_room(message);
  const ssize_t bytes =
      ::recvmsg(socket_.native_handle(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  const Moved moved = outcome_of(bytes);
  if (has_room && bytes >= 0) take_files_of(message);
  // The kernel closes files for which there is no room here or in the process.
  if (takes_files_ && (message.msg_flags & MSG_CTRUNC) != 0 && arrived_.size() < kMaxPassedFiles) {
    files_refused_ = true;
  }
  TrafficCount::add(traffic_.received, moved.bytes);
  return moved;
}

void Stream::take_files_of(const msghdr& message) {
  std::size_t next = arrived_.size();
  FileControl::take(message, arrived_);
  for (; next < arrived_.size(); ++next) arrived_[next] = files_.counted(arrived_[next]);
}

Stream::Moved Stream::try_write(std::span<iovec> pieces) {
  if (tls_ != nullptr) {
    const Moved moved = outcome_of(tls_->write(pieces), write_wants_);
    TrafficCount::add(traffic_.sent, moved.bytes);
    return moved;
  }
  constexpr int kFlags = MSG_DONTWAIT | MSG_NOSIGNAL;
  if (pieces.size() == 1 && leaving_.empty()) {
    const Moved moved =
        outcome_of(::send(socket_.native_handle(), pieces[0].iov_base, pieces[0].iov_len, kFlags));
    TrafficCount::add(traffic_.sent, moved.bytes);
    return moved;
  }
  msghdr message = message_of(pieces);
  FileControl control;
  control.attach(message, leaving_);
  const Moved moved = outcome_of(::sendmsg(socket_.native_handle(), &message, kFlags));
  if (moved.outcome == Outcome::moved) leaving_.clear();
  TrafficCount::add(traffic_.sent, moved.bytes);
  return moved;
}

void Stream::pass_files(PassedFiles files) {
  CAIRN_ASSERT(passes_files_, "files go only where they may");
  leaving_ = std::move(files);
}

Stream::End Stream::end_of_client() const {
  pollfd asked{
      .fd = const_cast<Socket&>(socket_).native_handle(), .events = POLLRDHUP, .revents = 0};
  if (::poll(&asked, 1, 0) <= 0) return End::none;
  return (asked.revents & (POLLHUP | POLLERR)) != 0 ? End::gone : End::sends_no_more;
}

bool Stream::has_input() const {
  pollfd asked{.fd = const_cast<Socket&>(socket_).native_handle(), .events = POLLIN, .revents = 0};
  return ::poll(&asked, 1, 0) > 0 && (asked.revents & POLLHUP) == 0;
}

void Stream::cancel() {
  boost::system::error_code ignored;
  socket_.cancel(ignored);
}

void Stream::shutdown_send() {
  boost::system::error_code ignored;
  if (tls_ != nullptr) tls_->shut_down();
  socket_.shutdown(Socket::shutdown_send, ignored);
}

void Stream::close() {
  if (tls_ != nullptr && socket_.is_open()) tls_->shut_down();
  boost::system::error_code ignored;
  socket_.close(ignored);
}

}  // namespace cairn::http
