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

// Speaks ZMTP 3 (RFC 23 of ZeroMQ, mechanism NULL) to clients that nobody vouches for, as a PUB
// socket or as a ROUTER that answers replays. Not libzmq, since that keeps whatever strangers send
// it: the parts of a message without an end, and every subscription. Here each client has a fixed
// room for what it sends, a bounded list of subscriptions, and of what it is sent a number and the
// one batch that is under way.
//
// Used on the thread that runs `io`.
class ZmtpServer {
 public:
  enum class Kind : std::uint8_t {
    publish,  // to SUB and XSUB: topic, number as 8 bytes big-endian, payload
    replay,   // to REQ, DEALER and ROUTER: who sends a number is sent the batches from there on,
              // then one numbered -1 without a payload
  };
  struct Options {
    Kind kind = Kind::publish;
    std::string endpoint;
    std::uint32_t max_clients = 0;
    std::uint64_t most_behind = 0;  // batches that a slow subscriber may still get; older ones go
  };
  // "tcp://HOST:PORT" (no host is 127.0.0.1, * every IPv4 address; port 0 or *: any free one) or
  // "ipc://PATH". Borrows all of them. malformed; io_error.
  struct Parts {
    boost::asio::io_context& io;
    const BatchHistory& history;
    const Clock& clock;
    Logger& log;
  };
  static Result<std::unique_ptr<ZmtpServer>> bind(const Parts& parts, const Options& options);
  ~ZmtpServer();

  // As it was bound.
  const std::string& endpoint() const;
  // Others than this machine's processes reach it.
  bool is_open_to_network() const;
  // Sends on what is new, and ends clients that let the server wait for too long. Often.
  void tick();

 private:
  class Impl;
  explicit ZmtpServer(std::unique_ptr<Impl> impl);
  const std::unique_ptr<Impl> impl_;
};

}  // namespace cairn
