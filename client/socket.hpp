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

// A connected, blocking stream socket, with TLS if the endpoint says so. The destructor closes it.
// Not thread-safe.
class Socket {
 public:
  // `timeout_ms` limits the connecting, and later each time without a byte sent or received.
  static Answer<Socket> connect(const Endpoint& endpoint, std::uint32_t timeout_ms,
                                const TlsFiles& tls = {});

  ~Socket();
  Socket(Socket&& other) noexcept;
  Socket& operator=(Socket&& other) noexcept;

  // Sends every byte; changes `pieces`. Files can be sent over a Unix socket only.
  Answer<> send(std::vector<iovec>& pieces, PassedFiles files = {});
  // Waits for at least one byte. Returns their number; 0 at the end of the stream.
  Answer<std::size_t> receive(std::span<const iovec> room);
  // The files received since the last call.
  PassedFiles arrived_files() { return std::exchange(arrived_, {}); }
  // Whether an idle connection cannot be used any more: the server closed it or sent unrequested
  // bytes.
  bool stale() const;

 private:
  explicit Socket(int fd) : fd_(fd) {}
  Answer<std::size_t> send_some(std::span<iovec> pieces, const PassedFiles& files);
  int fd_ = -1;
  PassedFiles arrived_;
  std::optional<TlsChannel> tls_;
};

}  // namespace cairn::client
