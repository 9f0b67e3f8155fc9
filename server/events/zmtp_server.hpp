#pragma once

#include <boost/asio/io_context.hpp>
#include <cstdint>
#include <memory>
#include <string>

#include "base/clock.hpp"
#include "base/log.hpp"
#include "base/result.hpp"
#include "server/events/batch_history.hpp"

namespace cairn {

// Speaks ZMTP 3 (ZeroMQ RFC 23, mechanism NULL) to untrusted clients, as a PUB socket or as a
// ROUTER that answers replays. Not libzmq, which keeps whatever strangers send: the parts of an
// endless message, and every subscription. Here each client has a fixed input buffer, a bounded
// list of subscriptions, and for output a number and the current batch.
//
// Not thread-safe: use it on the thread that runs `io`.
class ZmtpServer {
 public:
  enum class Kind : std::uint8_t {
    publish,  // to SUB and XSUB: topic, number as 8 bytes big-endian, payload
    // to REQ, DEALER and ROUTER: answers a number with the batches from there on, then one numbered
    // -1 without payload
    replay,
  };
  struct Options {
    Kind kind = Kind::publish;
    std::string endpoint;
    std::uint32_t max_clients = 0;
    std::uint64_t most_behind = 0;  // batches kept for a slow subscriber; drops older ones
  };
  // Borrows its parts. Listens on "tcp://HOST:PORT" (no host: 127.0.0.1; *: every IPv4 address;
  // port 0 or *: any free port) or on "ipc://PATH". Errors: malformed, or the listener's.
  struct Parts {
    boost::asio::io_context& io;
    const BatchHistory& history;
    const Clock& clock;
    Logger& log;
  };
  static Result<std::unique_ptr<ZmtpServer>> bind(const Parts& parts, const Options& options);
  ~ZmtpServer();

  // The bound endpoint.
  const std::string& endpoint() const;
  // True if other machines can connect.
  bool is_open_to_network() const;
  // Sends new batches and drops clients that are too slow. Call often.
  void tick();

 private:
  class Impl;
  explicit ZmtpServer(std::unique_ptr<Impl> impl);
  const std::unique_ptr<Impl> impl_;
};

}  // namespace cairn
