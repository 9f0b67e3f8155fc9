#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/passed_files.hpp"
#include "client/answer.hpp"
#include "client/endpoint.hpp"
#include "client/tls.hpp"

namespace cairn::client {

// A connected, blocking stream socket, under TLS where the endpoint says so; closed with its owner.
// One thread at a time.
class Socket {
 public:
  // `timeout_ms` bounds the connecting, and afterwards the time without a byte moving.
  static Answer<Socket> connect(const Endpoint& endpoint, std::uint32_t timeout_ms,
                                const TlsFiles& tls = {});

  ~Socket();
  Socket(Socket&& other) noexcept;
  Socket& operator=(Socket&& other) noexcept;

  // Sends every byte; uses up `pieces`. Files go along over a Unix socket only.
  Answer<> send(std::vector<iovec>& pieces, PassedFiles files = {});
  // Waits for at least one byte; 0 is the end of the stream.
  Answer<std::size_t> receive(std::span<const iovec> room);
  // The files that came along with what was received since the last call.
  PassedFiles arrived_files() { return std::exchange(arrived_, {}); }
  // True where an idle connection was closed by its peer (or was sent what nobody asked for).
  bool stale() const;

 private:
  explicit Socket(int fd) : fd_(fd) {}
  Answer<std::size_t> send_some(std::span<iovec> pieces, const PassedFiles& files);
  int fd_ = -1;
  PassedFiles arrived_;
  std::optional<TlsChannel> tls_;
};

}  // namespace cairn::client
