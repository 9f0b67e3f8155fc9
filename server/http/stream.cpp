#include "server/http/stream.hpp"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cerrno>

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
  return true;
}

Stream::Moved Stream::try_read(std::span<iovec> room) {
  if (tls_ != nullptr) {
    const Moved moved = outcome_of(tls_->read(room), read_wants_);
    TrafficCount::add(traffic_.received, moved.bytes);
    return moved;
  }
  msghdr message = message_of(room);
  const Moved moved = outcome_of(::recvmsg(socket_.native_handle(), &message, MSG_DONTWAIT));
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
  const Moved moved =
      outcome_of(::sendmsg(socket_.native_handle(), &message, MSG_DONTWAIT | MSG_NOSIGNAL));
  TrafficCount::add(traffic_.sent, moved.bytes);
  return moved;
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
