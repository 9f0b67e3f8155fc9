#include "server/http/stream.hpp"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>

#include "base/assert.hpp"

namespace cairn::http {
namespace {

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

// The other end of a Unix socket, as the kernel knows it.
bool is_own_user(int fd) {
  ucred peer{};
  socklen_t size = sizeof peer;
  return ::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 &&
         (peer.uid == ::geteuid() || peer.uid == 0);
}

msghdr message_of(std::span<iovec> pieces) {
  msghdr message{};
  message.msg_iov = pieces.data();
  message.msg_iovlen = pieces.size();
  return message;
}

}  // namespace

bool Stream::open(Peer peer, const TlsIdentity* identity) {
  const bool tcp = peer.family != AF_UNIX;
  if (tcp) {
    // A response is one write, and must not wait for the acknowledgement of the one before.
    const int on = 1;
    ::setsockopt(peer.fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  }
  boost::system::error_code ec;
  socket_.assign({peer.family, tcp ? IPPROTO_TCP : 0}, peer.fd.get(), ec);
  if (ec) return false;
  peer.fd.release();
  if (identity != nullptr && tcp) {
    tls_ = identity->accept(socket_.native_handle());
    return tls_ != nullptr;
  }
  passes_files_ = !tcp && is_own_user(socket_.native_handle());
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
  if (passes_files_) control.make_room(message);
  const ssize_t bytes =
      ::recvmsg(socket_.native_handle(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  const Moved moved = outcome_of(bytes);
  if (passes_files_ && bytes >= 0) FileControl::take(message, arrived_);
  TrafficCount::add(traffic_.received, moved.bytes);
  return moved;
}

Stream::Moved Stream::try_write(std::span<iovec> pieces) {
  if (tls_ != nullptr) {
    const Moved moved = outcome_of(tls_->write(pieces), write_wants_);
    TrafficCount::add(traffic_.sent, moved.bytes);
    return moved;
  }
  msghdr message = message_of(pieces);
  FileControl control;
  control.attach(message, leaving_);
  const Moved moved =
      outcome_of(::sendmsg(socket_.native_handle(), &message, MSG_DONTWAIT | MSG_NOSIGNAL));
  if (moved.outcome == Outcome::moved) leaving_.clear();
  TrafficCount::add(traffic_.sent, moved.bytes);
  return moved;
}

void Stream::pass_files(PassedFiles files) {
  CAIRN_ASSERT(passes_files_, "files go only where they may");
  leaving_ = std::move(files);
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
