#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "base/log.hpp"
#include "base/result.hpp"
#include "memory/alloc/statistics.hpp"
#include "server/http/message.hpp"
#include "server/http/unix_access.hpp"

namespace cairn::http {

// Every bound of the HTTP side. Time-outs are kept to about 100 ms.
struct HttpLimits {
  std::uint32_t threads = 1;
  // Over TCP. Beyond them a connection that asks for nothing gives way, then requests are told 503.
  std::uint32_t max_connections = 4096;
  // The same over the Unix socket: strangers on the network do not keep this host's engines away.
  std::uint32_t max_unix_connections = 1024;
  // Open files that clients have passed over the Unix socket and the server still holds.
  std::uint32_t max_passed_files = 1024;
  std::uint32_t max_header_bytes = 16 * 1024;  // request line and fields; more is a 431
  // From the first byte of a request to the end of its head.
  std::uint32_t header_timeout_ms = 10'000;
  // Without a byte of the body arriving, or of the response leaving.
  std::uint32_t body_timeout_ms = 30'000;
  // What a body or a response moves at the least, over all the time that its client is waited for
  // beyond body_timeout_ms: a client that reads a byte now and then would hold the blocks that it
  // reads. At this rate a 2 MiB block takes 8 s.
  std::uint32_t least_rate_bytes_per_s = 256 * 1024;
  std::uint32_t idle_timeout_ms = 120'000;  // between requests
  // Of all bodies that are held at a time and are longer than SizeBucketPool::kMaxBytes.
  std::uint64_t body_memory_bytes = 256ull << 20;
};

class BodyMemory;
class TlsIdentity;

struct ListenConfig {
  std::string host = "127.0.0.1";
  std::uint16_t port = 7070;  // 0: any free one
  std::string unix_path;      // empty: no Unix socket
  UnixAccess unix_access;
  // Null: plain HTTP. Borrowed: must outlive the server. The Unix socket is always plain.
  const TlsIdentity* tls = nullptr;
};

// io_error where the address is not this machine's, or the Unix socket's folder is not there. The
// port may be in use.
Result<> check_listen(const ListenConfig& listen);

// What the machinery counts itself. Relaxed reads.
struct HttpServerStats {
  std::uint64_t connections_open = 0;
  std::uint64_t connections_accepted = 0;
  std::uint64_t connections_refused = 0;
  std::uint64_t bytes_received = 0;
  std::uint64_t bytes_sent = 0;
};

// HTTP/1.1 with keep-alive and pipelining (answered in order) over TCP and a Unix socket. Each
// network thread has an io_context of its own and a connection lives on one thread.
class HttpServer {
 public:
  // Listens and starts its threads. `handler`, `clock` and `log` must outlive it. Fails where the
  // address cannot be listened on; a Unix socket left by a dead server is replaced, that of a live
  // one is not.
  static Result<std::unique_ptr<HttpServer>> start(const ListenConfig& listen,
                                                   const HttpLimits& limits, Handler& handler,
                                                   const Clock& clock, Logger& log);
  ~HttpServer();  // stops at once: what is in progress is cut

  std::uint16_t port() const;
  // Thread-safe.
  HttpServerStats stats() const;
  std::vector<NamedAllocator> allocators() const;
  // For what a route keeps by itself, of a body or of what it asks for: under the same bound.
  // Thread-safe.
  BodyMemory& bodies() const;
  // True where each network thread has gone round its loop since the last call, which they do at
  // least every 100 ms. Not by two threads at once.
  bool is_alive();
  // Memory of bodies that nobody has used since the last call goes back to the system. Not by two
  // threads at once.
  void trim_idle();
  // Stops accepting, closes idle connections, ends the others after the response in progress;
  // returns when none is left or after `timeout_ms`, when what remains is cut. True where nothing
  // was cut.
  bool drain(std::uint32_t timeout_ms);

 private:
  class Impl;
  explicit HttpServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace cairn::http
