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

// What this server proves itself with. TLS 1.2 at the least. Thread-safe.
class TlsIdentity {
 public:
  // not_found or malformed, naming the file, where they cannot be used.
  static Result<std::unique_ptr<TlsIdentity>> load(TlsFiles files);

  // Reads the files again, for connections from now on; where that fails, all stays as it was.
  Result<> reload();
  // The server's side of a connection over a non-blocking socket, which must outlive it. Null where
  // there is no memory.
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

// One connection's TLS. Nothing blocks; the handshake is part of the first reads and writes. Not
// thread-safe.
class TlsSession {
 public:
  // Where nothing could be moved: what has to be waited for before it is tried again. A read may
  // have to wait until something can be written, and the other way round.
  enum class Wants : std::uint8_t { nothing, read, write, ended };
  struct Moved {
    std::size_t bytes = 0;
    Wants wants = Wants::nothing;  // where bytes is 0
  };

  explicit TlsSession(ssl_st* session);
  ~TlsSession();
  TlsSession(const TlsSession&) = delete;
  TlsSession& operator=(const TlsSession&) = delete;

  Moved read(std::span<iovec> room);
  // What was written is copied: the pieces may change. What was not has to come again.
  Moved write(std::span<iovec> pieces);
  bool is_established() const;
  // Says goodbye, if that can be said at once.
  void shut_down();

 private:
  Wants wants_after(int result);

  ssl_st* session_;
  bool broken_ = false;  // after an error nothing more may be said
  std::unique_ptr<std::byte[]> gathered_;
};

}  // namespace cairn::http
