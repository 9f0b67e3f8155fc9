#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "base/result.hpp"

namespace cairn {

// A connected or listening stream socket, never blocking; closed with its owner.
class LinkSocket {
 public:
  LinkSocket() = default;
  explicit LinkSocket(int fd) : fd_(fd) {}
  LinkSocket(LinkSocket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  LinkSocket& operator=(LinkSocket&& other) noexcept {
    close();
    fd_ = std::exchange(other.fd_, -1);
    return *this;
  }
  ~LinkSocket() { close(); }

  int fd() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  void close();

 private:
  int fd_ = -1;
};

struct LinkAddress {
  std::string host;  // its number: HostNames finds it
  std::uint16_t port = 0;

  std::string text() const { return host + ":" + std::to_string(port); }
};

// Until when to wait, and what ends the wait before that.
struct LinkWait {
  std::chrono::steady_clock::time_point until;
  int stop_fd = -1;  // readable: cancelled
};

// Port 0: any free one. unavailable, with errno's words.
Result<LinkSocket> listen_on(const LinkAddress& address);
std::uint16_t port_of(const LinkSocket& listener);
// Of the other side, or of this one, as a number.
std::string peer_host(const LinkSocket& socket);
std::string own_host(const LinkSocket& socket);

// unavailable where nobody listens there; deadline_exceeded; cancelled.
Result<LinkSocket> connect_to(const LinkAddress& address, const LinkWait& wait);
// The next one that waits; an empty socket where none does.
LinkSocket accept_from(const LinkSocket& listener);
// Large messages at once, small ones without delay.
void prepare_link(const LinkSocket& socket);

// All of it. peer_lost where the other side closes first; deadline_exceeded; cancelled.
Result<> read_all(const LinkSocket& socket, std::span<std::byte> bytes, const LinkWait& wait);
Result<> write_all(const LinkSocket& socket, std::span<const std::byte> bytes,
                   const LinkWait& wait);

// poll(2) on one socket. deadline_exceeded; cancelled.
Result<> wait_for_socket(int fd, short events, const LinkWait& wait);
// The milliseconds that poll(2) takes, rounded up; 0 where the time has passed.
int poll_timeout_ms(std::chrono::steady_clock::time_point until);

}  // namespace cairn
