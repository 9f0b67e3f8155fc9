#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/mutex.hpp"
#include "base/result.hpp"

struct ssl_ctx_st;
struct ssl_st;

namespace cairn::http {

struct TlsFiles {
  std::string certificate;  // PEM, with its chain
  std::string key;          // PEM
  std::string client_ca;    // PEM; empty: clients need no certificate
};

class TlsSession;

// The server's certificate and key. TLS 1.2 or later. Thread-safe.
class TlsIdentity {
 public:
  // Errors: not_found or malformed, with the name of the file.
  static Result<std::unique_ptr<TlsIdentity>> load(TlsFiles files);

  // Reads the files again for new connections. On failure nothing changes.
  Result<> reload();
  // Creates the server side of TLS on a non-blocking socket, which must outlive it. Returns null if
  // memory runs out.
  std::unique_ptr<TlsSession> accept(int fd) const;

 private:
  using Context = std::shared_ptr<ssl_ctx_st>;
  TlsIdentity(TlsFiles files, Context context)
      : files_(std::move(files)), context_(std::move(context)) {}
  static Result<Context> make_context(const TlsFiles& files);

  const TlsFiles files_;
  mutable Mutex mutex_;
  Context context_ CAIRN_GUARDED_BY(mutex_);
};

// TLS of one connection. Never blocks; the first reads and writes do the handshake. Not
// thread-safe.
class TlsSession {
 public:
  // If nothing was moved: what to wait for before the next attempt. A read may have to wait until
  // the socket is writable, and a write until it is readable.
  enum class Wants : std::uint8_t { nothing, read, write, ended };
  struct Moved {
    std::size_t bytes = 0;
    Wants wants = Wants::nothing;  // if bytes is 0
  };

  explicit TlsSession(ssl_st* session);
  ~TlsSession();
  TlsSession(const TlsSession&) = delete;
  TlsSession& operator=(const TlsSession&) = delete;

  Moved read(std::span<iovec> room);
  // Copies what it writes, so the pieces may change. Pass the rest again.
  Moved write(std::span<iovec> pieces);
  bool is_established() const;
  // Sends close_notify if that is possible at once.
  void shut_down();

 private:
  Wants wants_after(int result);

  ssl_st* session_;
  bool broken_ = false;  // after an error, send nothing more
  std::unique_ptr<std::byte[]> gathered_;
};

}  // namespace cairn::http
