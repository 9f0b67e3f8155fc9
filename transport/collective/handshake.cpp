#include "transport/collective/handshake.hpp"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <thread>

namespace cairn {
namespace {

// Limits for connections that have not said hello yet; one more drops the oldest.
constexpr std::size_t kMaxVisitors = 512;
constexpr std::chrono::seconds kPatience{5};
// Pause when the process has no free file descriptor.
constexpr std::chrono::milliseconds kOutOfDescriptors{100};
constexpr std::size_t kMaxVerdictBytes = 1024;

struct VerdictHead {
  std::uint32_t code = 0;  // 0: accepted; else an ErrorCode + 1
  std::uint32_t size_bytes = 0;
};

}  // namespace

bool Handshake::knows_the_secret(const Hello& hello) const {
  // Constant time: the duration must not show how many bytes match.
  unsigned differences = hello.magic == Hello::kMagic ? 0 : 1;
  for (std::size_t i = 0; i < secret_.size(); ++i) {
    differences |= static_cast<unsigned>(hello.secret[i] ^ secret_[i]);
  }
  return differences == 0;
}

bool Handshake::listen_to(Visitor& visitor) {
  while (visitor.have < visitor.bytes.size()) {
    const ssize_t got = ::recv(visitor.socket.fd(), visitor.bytes.data() + visitor.have,
                               visitor.bytes.size() - visitor.have, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return true;
    if (got <= 0) return false;
    visitor.have += static_cast<std::size_t>(got);
  }
  return true;
}

Result<std::optional<Handshake::Arrival>> Handshake::next(const std::vector<int>& watched,
                                                          const LinkWait& wait) {
  while (true) {
    const auto now = std::chrono::steady_clock::now();
    std::erase_if(visitors_, [now](const Visitor& visitor) { return visitor.until <= now; });
    auto until = wait.until;
    std::vector<pollfd> polled = {{.fd = wait.stop_fd, .events = POLLIN, .revents = 0},
                                  {.fd = listener_.fd(), .events = POLLIN, .revents = 0}};
    for (int fd : watched) polled.push_back({.fd = fd, .events = POLLIN, .revents = 0});
    for (const Visitor& visitor : visitors_) {
      polled.push_back({.fd = visitor.socket.fd(), .events = POLLIN, .revents = 0});
      until = std::min(until, visitor.until);
    }
    const int found = ::poll(polled.data(), polled.size(), poll_timeout_ms(until));
    if (found < 0 && errno != EINTR) {
      return Error{ErrorCode::internal, std::string("poll: ") + std::strerror(errno)};
    }
    if (found > 0 && polled[0].revents != 0) return Error{ErrorCode::cancelled, "stopped"};
    if (found <= 0) {
      if (std::chrono::steady_clock::now() < wait.until) continue;
      return Error{ErrorCode::deadline_exceeded, "not every rank joined in time"};
    }
    for (auto visitor = visitors_.begin(); visitor != visitors_.end();) {
      if (!listen_to(*visitor)) {
        visitor = visitors_.erase(visitor);
        continue;
      }
      if (visitor->have < visitor->bytes.size()) {
        ++visitor;
        continue;
      }
      Arrival arrival{.socket = std::move(visitor->socket),
                      .hello = std::bit_cast<Hello>(visitor->bytes)};
      visitor = visitors_.erase(visitor);
      if (knows_the_secret(arrival.hello)) return std::optional<Arrival>(std::move(arrival));
      const Error refusal{ErrorCode::unauthorized, "the unique id belongs to another group"};
      static_cast<void>(send_verdict(arrival.socket, refusal, {.until = now, .stop_fd = -1}));
    }
    if (polled[1].revents != 0) {
      while (LinkSocket socket = accept_from(listener_)) {
        if (visitors_.size() == kMaxVisitors) visitors_.pop_front();
        visitors_.push_back({.socket = std::move(socket), .until = now + kPatience});
      }
      // The refused connection stays in the backlog, so accept fails again at once: wait.
      if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
        std::this_thread::sleep_for(kOutOfDescriptors);
      }
    }
    for (std::size_t i = 0; i < watched.size(); ++i) {
      if (polled[2 + i].revents != 0) return std::optional<Arrival>();
    }
  }
}

Result<> send_verdict(const LinkSocket& socket, const Result<>& verdict, const LinkWait& wait) {
  VerdictHead head;
  std::string detail;
  if (!verdict) {
    const Error why = verdict.error();
    detail = why.detail.substr(0, kMaxVerdictBytes);
    head = {.code = static_cast<std::uint32_t>(why.code) + 1,
            .size_bytes = static_cast<std::uint32_t>(detail.size())};
  }
  std::string bytes(reinterpret_cast<const char*>(&head), sizeof head);
  bytes += detail;
  return write_all(socket, std::as_bytes(std::span(bytes)), wait);
}

Result<> receive_verdict(const LinkSocket& socket, const LinkWait& wait) {
  VerdictHead head;
  CAIRN_TRY(read_all(socket, std::as_writable_bytes(std::span(&head, 1)), wait));
  if (head.code == 0) return {};
  std::string detail(std::min<std::size_t>(head.size_bytes, kMaxVerdictBytes), '\0');
  CAIRN_TRY(read_all(socket, std::as_writable_bytes(std::span(detail)), wait));
  const bool known = head.code <= static_cast<std::uint32_t>(ErrorCode::internal) + 1;
  return Error{known ? static_cast<ErrorCode>(head.code - 1) : ErrorCode::peer_lost,
               std::move(detail)};
}

}  // namespace cairn
