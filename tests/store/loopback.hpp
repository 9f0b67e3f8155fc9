#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdint>

namespace cairn::testing {

// A socket that listens on a free port of 127.0.0.1. The caller closes it.
struct Loopback {
  int listener = -1;
  std::uint16_t port = 0;
};
struct LoopbackOptions {
  int backlog = 1;
  bool blocks = true;
};
inline Loopback listen_on_loopback(LoopbackOptions options) {
  const int type = SOCK_STREAM | (options.blocks ? 0 : SOCK_NONBLOCK);
  const int listener = ::socket(AF_INET, type, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ::socklen_t size = sizeof address;
  ::bind(listener, reinterpret_cast<sockaddr*>(&address), size);
  ::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size);
  ::listen(listener, options.backlog);
  return {listener, ntohs(address.sin_port)};
}

}  // namespace cairn::testing
