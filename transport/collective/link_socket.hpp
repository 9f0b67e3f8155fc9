#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "base/result.hpp"

namespace cairn {

// A connected or listening stream socket. Non-blocking; closed by the destructor.
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
  std::string host;  // numeric; HostNames resolves names
  std::uint16_t port = 0;

  std::string text() const { return host + ":" + std::to_string(port); }
};

// When a wait ends: at `until`, or earlier when `stop_fd` is readable.
struct LinkWait {
  std::chrono::steady_clock::time_point until;
  int stop_fd = -1;  // readable: return cancelled
};

// Port 0 picks a free port. Returns unavailable, with errno's message.
Result<LinkSocket> listen_on(const LinkAddress& address);
std::uint16_t port_of(const LinkSocket& listener);
// The numeric address of the other side or of this side.
std::string peer_host(const LinkSocket& socket);
std::string own_host(const LinkSocket& socket);

// Errors: unavailable if nobody listens there; deadline_exceeded; cancelled.
Result<LinkSocket> connect_to(const LinkAddress& address, const LinkWait& wait);
// Accepts the next pending connection; returns an empty socket if there is none.
LinkSocket accept_from(const LinkSocket& listener);
// Sends small messages without delay (TCP_NODELAY).
void prepare_link(const LinkSocket& socket);

// Transfers all bytes. Errors: peer_lost if the other side closes first; deadline_exceeded;
// cancelled.
Result<> read_all(const LinkSocket& socket, std::span<std::byte> bytes, const LinkWait& wait);
Result<> write_all(const LinkSocket& socket, std::span<const std::byte> bytes,
                   const LinkWait& wait);

// poll(2) on one socket. Errors: deadline_exceeded; cancelled.
Result<> wait_for_socket(int fd, short events, const LinkWait& wait);
// Timeout for poll(2) in milliseconds, rounded up; 0 if `until` has passed.
int poll_timeout_ms(std::chrono::steady_clock::time_point until);

}  // namespace cairn
