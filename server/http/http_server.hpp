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

// All limits of the HTTP side. Timeouts are accurate to about 100 ms.
struct HttpLimits {
  std::uint32_t threads = 1;
  // TCP connections. Above this limit, idle connections are closed first, then requests get 503.
  std::uint32_t max_connections = 4096;
  // Unix socket connections, separate so that network clients cannot lock out this host's engines.
  std::uint32_t max_unix_connections = 1024;
  // Open files that clients passed over the Unix socket and the server still holds.
  std::uint32_t max_passed_files = 1024;
  std::uint32_t max_header_bytes = 16 * 1024;  // request line and fields; more returns 431
  // From the first byte of a request to the end of its head.
  std::uint32_t header_timeout_ms = 10'000;
  // Maximum pause between bytes of a body or response.
  std::uint32_t body_timeout_ms = 30'000;
  // Minimum rate of a body or response, over the time spent waiting for the client beyond
  // body_timeout_ms. Otherwise a client that reads a byte now and then could pin the blocks it
  // reads. At this rate a 2 MiB block takes 8 s.
  std::uint32_t least_rate_bytes_per_s = 256 * 1024;
  std::uint32_t idle_timeout_ms = 120'000;  // between requests
  // For all bodies in memory that are longer than SizeBucketPool::kMaxBytes.
  std::uint64_t body_memory_bytes = 256ull << 20;
};

class BodyMemory;
class TlsIdentity;

struct ListenConfig {
  std::string host = "127.0.0.1";
  std::uint16_t port = 7070;  // 0: any free port
  std::string unix_path;      // empty: no Unix socket
  UnixAccess unix_access;
  // Null: plain HTTP. Borrowed; must outlive the server. The Unix socket never uses TLS.
  const TlsIdentity* tls = nullptr;
};

// Checks the address and the Unix socket's folder. Errors: not_found, unavailable or impossible.
// Does not check whether the port is in use.
Result<> check_listen(const ListenConfig& listen);

// Counters of the HTTP machinery. Relaxed reads.
struct HttpServerStats {
  std::uint64_t connections_open = 0;
  std::uint64_t connections_accepted = 0;
  std::uint64_t connections_refused = 0;
  std::uint64_t bytes_received = 0;
  std::uint64_t bytes_sent = 0;
};

// HTTP/1.1 with keep-alive and pipelining (answered in order) over TCP and a Unix socket. Each
// network thread has its own io_context; a connection stays on one thread.
class HttpServer {
 public:
  // Listens and starts its threads. `handler`, `clock` and `log` must outlive it. Fails if it
  // cannot listen. Replaces a Unix socket left by a dead server, but not that of a live one.
  static Result<std::unique_ptr<HttpServer>> start(const ListenConfig& listen,
                                                   const HttpLimits& limits, Handler& handler,
                                                   const Clock& clock, Logger& log);
  ~HttpServer();  // stops at once and cuts what is in progress

  std::uint16_t port() const;
  // Thread-safe.
  HttpServerStats stats() const;
  std::vector<NamedAllocator> allocators() const;
  // Memory for data that routes keep outside of bodies, under the same limit. Thread-safe.
  BodyMemory& bodies() const;
  // Returns true if every network thread has run its loop since the last call; each does so at
  // least every 100 ms. Not thread-safe.
  bool is_alive();
  // Returns the memory that one of allocators() keeps for reuse to the system. False if none of
  // that name keeps any. Thread-safe.
  bool give_back_cached(std::string_view allocator) const;
  // Gives the system the memory of bodies that was not used since the last call. Not thread-safe.
  void trim_idle();
  // Stops accepting, closes idle connections, and closes the others after their current response.
  // Returns true when none is left. After `timeout_ms` it cuts the rest and returns false.
  bool drain(std::uint32_t timeout_ms);

 private:
  class Impl;
  explicit HttpServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace cairn::http
