#include "tests/server/http/socket_client.hpp"

#include <netinet/in.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>

#include <array>
#include <cstring>
#include <utility>

namespace cairn::http::testing {
namespace {

FileDescriptor connect_to(int family, const void* address, socklen_t size) {
  FileDescriptor fd(::socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const timeval give_up{20, 0};
  ::setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &give_up, sizeof give_up);
  ::setsockopt(fd.get(), SOL_SOCKET, SO_SNDTIMEO, &give_up, sizeof give_up);
  if (::connect(fd.get(), static_cast<const sockaddr*>(address), size) != 0) fd.reset();
  return fd;
}

}  // namespace

std::optional<std::string> ClientResponse::field(std::string_view name) const {
  std::size_t at = head.find("\r\n");
  while (at != std::string::npos && at + 4 < head.size()) {
    const std::size_t start = at + 2;
    at = head.find("\r\n", start);
    const std::string line = head.substr(start, at - start);
    const std::size_t colon = line.find(": ");
    if (colon == name.size() && ::strncasecmp(line.data(), name.data(), colon) == 0) {
      return line.substr(colon + 2);
    }
  }
  return std::nullopt;
}

SocketClient SocketClient::tcp(std::uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  SocketClient client;
  client.fd_ = connect_to(AF_INET, &address, sizeof address);
  return client;
}

SocketClient SocketClient::local(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path.c_str(), sizeof address.sun_path - 1);
  SocketClient client;
  client.fd_ = connect_to(AF_UNIX, &address, sizeof address);
  return client;
}

bool SocketClient::send(std::string_view bytes, PassedFiles files) {
  while (!bytes.empty()) {
    iovec piece{const_cast<char*>(bytes.data()), bytes.size()};
    msghdr message{};
    message.msg_iov = &piece;
    message.msg_iovlen = 1;
    FileControl control;
    control.attach(message, files);
    const ssize_t sent = ::sendmsg(fd_.get(), &message, MSG_NOSIGNAL);
    if (sent <= 0) return false;
    files.clear();
    bytes.remove_prefix(static_cast<std::size_t>(sent));
  }
  return true;
}

bool SocketClient::fetch() {
  std::array<char, 64 * 1024> piece;
  iovec room{piece.data(), piece.size()};
  msghdr message{};
  message.msg_iov = &room;
  message.msg_iovlen = 1;
  FileControl control;
  control.make_room(message);
  const ssize_t got = ::recvmsg(fd_.get(), &message, MSG_CMSG_CLOEXEC);
  if (got <= 0) return false;
  FileControl::take(message, arrived_);
  unread_.append(piece.data(), static_cast<std::size_t>(got));
  return true;
}

ClientResponse SocketClient::receive(bool to_head) {
  ClientResponse response;
  std::size_t end = unread_.find("\r\n\r\n");
  while (end == std::string::npos) {
    if (!fetch()) return response;
    end = unread_.find("\r\n\r\n");
  }
  response.head = unread_.substr(0, end + 4);
  unread_.erase(0, end + 4);
  response.status = static_cast<unsigned>(std::stoul(response.head.substr(9, 3)));
  const bool has_body =
      !to_head && response.status >= 200 && response.status != 204 && response.status != 304;
  const std::size_t length =
      has_body ? std::stoul(response.field("Content-Length").value_or("0")) : 0;
  response.body = receive_bytes(length);
  response.complete = response.body.size() == length;
  response.files = std::exchange(arrived_, {});
  return response;
}

std::string SocketClient::receive_bytes(std::size_t bytes) {
  while (unread_.size() < bytes && fetch()) {
  }
  std::string got = unread_.substr(0, bytes);
  unread_.erase(0, got.size());
  return got;
}

bool SocketClient::closed_by_server() {
  char byte = 0;
  return unread_.empty() && ::recv(fd_.get(), &byte, 1, 0) == 0;
}

void SocketClient::shutdown_send() { ::shutdown(fd_.get(), SHUT_WR); }

void SocketClient::shrink_receive_buffer() {
  const int bytes = 4096;
  ::setsockopt(fd_.get(), SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes);
}

}  // namespace cairn::http::testing
