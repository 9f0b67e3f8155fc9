#include "server/http/server_tls.hpp"

#include <fcntl.h>
#include <openssl/err.h>
#include <openssl/ssl.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <system_error>
#include <utility>

#include "base/file_descriptor.hpp"

namespace cairn::http {
namespace {

// The largest TLS record. Small pieces are gathered up to this size, so that a response's head and
// body go out together.
constexpr std::size_t kRecordBytes = 16 * 1024;
// Maximum per call, so that a connection's turn ends.
constexpr std::size_t kMostBytes = 256 * 1024;
// For TLS 1.2: suites with forward secrecy and authenticated encryption, as in TLS 1.3.
constexpr const char* kTls12Suites = "ECDHE+AESGCM:ECDHE+CHACHA20";

std::string last_reason() {
  char text[256] = "unknown";
  if (const unsigned long code = ERR_peek_last_error(); code != 0) {
    ERR_error_string_n(code, text, sizeof text);
  }
  ERR_clear_error();
  return text;
}

// OpenSSL does not report clearly that a file cannot be opened, so try it to get errno.
Error unusable(const std::string& what, const std::string& path) {
  const std::string reason = last_reason();
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file) return {ErrorCode::malformed, what + " '" + path + "' cannot be used: " + reason};
  const int number = errno;
  return {ErrorCode::not_found,
          what + " '" + path + "' cannot be used: " + std::generic_category().message(number)};
}

// ALPN: accepts http/1.1 if the client offers it.
int choose_http11(SSL*, const unsigned char** out, unsigned char* out_bytes,
                  const unsigned char* offered, unsigned offered_bytes, void*) {
  static constexpr unsigned char kHttp11[] = "\x08http/1.1";
  unsigned char* chosen = nullptr;
  const int found = SSL_select_next_proto(&chosen, out_bytes, kHttp11, sizeof kHttp11 - 1, offered,
                                          offered_bytes);
  *out = chosen;
  return found == OPENSSL_NPN_NEGOTIATED ? SSL_TLSEXT_ERR_OK : SSL_TLSEXT_ERR_NOACK;
}

}  // namespace

Result<TlsIdentity::Context> TlsIdentity::make_context(const TlsFiles& files) {
  ERR_clear_error();
  Context context(SSL_CTX_new(TLS_server_method()), SSL_CTX_free);
  SSL_CTX* raw = context.get();
  if (raw == nullptr) return Error{ErrorCode::internal, "no TLS: " + last_reason()};
  SSL_CTX_set_min_proto_version(raw, TLS1_2_VERSION);
  if (SSL_CTX_set_cipher_list(raw, kTls12Suites) != 1) {
    return Error{ErrorCode::internal, "no TLS: " + last_reason()};
  }
  SSL_CTX_set_options(
      raw, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION | SSL_OP_CIPHER_SERVER_PREFERENCE);
  SSL_CTX_set_mode(raw, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                            SSL_MODE_RELEASE_BUFFERS);
  SSL_CTX_set_alpn_select_cb(raw, choose_http11, nullptr);
  if (SSL_CTX_use_certificate_chain_file(raw, files.certificate.c_str()) != 1) {
    return unusable("the TLS certificate", files.certificate);
  }
  if (SSL_CTX_use_PrivateKey_file(raw, files.key.c_str(), SSL_FILETYPE_PEM) != 1 ||
      SSL_CTX_check_private_key(raw) != 1) {
    return unusable("the TLS key", files.key);
  }
  if (files.client_ca.empty()) return context;
  if (SSL_CTX_load_verify_locations(raw, files.client_ca.c_str(), nullptr) != 1) {
    return unusable("the client CA", files.client_ca);
  }
  SSL_CTX_set_client_CA_list(raw, SSL_load_client_CA_file(files.client_ca.c_str()));
  SSL_CTX_set_verify(raw, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  // A resumed session must come from a context with this name, which has verified the client.
  static constexpr std::string_view kName = "cairn";
  SSL_CTX_set_session_id_context(raw, reinterpret_cast<const unsigned char*>(kName.data()),
                                 static_cast<unsigned>(kName.size()));
  return context;
}

Result<std::unique_ptr<TlsIdentity>> TlsIdentity::load(TlsFiles files) {
  auto context = make_context(files);
  if (!context) return std::move(context).error();
  return std::unique_ptr<TlsIdentity>(new TlsIdentity(std::move(files), std::move(*context)));
}

Result<> TlsIdentity::reload() {
  auto context = make_context(files_);
  if (!context) return std::move(context).error();
  MutexLock lock(mutex_);
  context_.swap(*context);
  return {};
}

std::unique_ptr<TlsSession> TlsIdentity::accept(int fd) const {
  Context context;
  {
    MutexLock lock(mutex_);
    context = context_;
  }
  SSL* session = SSL_new(context.get());  // holds the context too
  if (session == nullptr || SSL_set_fd(session, fd) != 1) {
    SSL_free(session);
    ERR_clear_error();
    return nullptr;
  }
  SSL_set_accept_state(session);
  return std::make_unique<TlsSession>(session);
}

TlsSession::TlsSession(ssl_st* session) : session_(session) {}

TlsSession::~TlsSession() { SSL_free(session_); }

TlsSession::Wants TlsSession::wants_after(int result) {
  switch (SSL_get_error(session_, result)) {
    case SSL_ERROR_WANT_READ:
      return Wants::read;
    case SSL_ERROR_WANT_WRITE:
      return Wants::write;
    case SSL_ERROR_ZERO_RETURN:
      return Wants::ended;
    default:
      broken_ = true;
      ERR_clear_error();
      return Wants::ended;
  }
}

TlsSession::Moved TlsSession::read(std::span<iovec> room) {
  Moved moved;
  if (broken_) return {0, Wants::ended};
  ERR_clear_error();
  for (const iovec& piece : room) {
    std::size_t filled = 0;
    while (filled < piece.iov_len) {
      std::size_t bytes = 0;
      const int result = SSL_read_ex(session_, static_cast<std::byte*>(piece.iov_base) + filled,
                                     piece.iov_len - filled, &bytes);
      if (result != 1) {
        // The next call reports what follows these bytes.
        if (moved.bytes == 0) moved.wants = wants_after(result);
        ERR_clear_error();
        return moved;
      }
      filled += bytes;
      moved.bytes += bytes;
      if (moved.bytes >= kMostBytes) return moved;
    }
  }
  return moved;
}

TlsSession::Moved TlsSession::write(std::span<iovec> pieces) {
  if (broken_) return {0, Wants::ended};
  ERR_clear_error();
  // Depends only on the pieces, because a retry must pass the same bytes.
  const void* data = pieces.front().iov_base;
  std::size_t size = std::min(pieces.front().iov_len, kMostBytes);
  if (size < kRecordBytes && pieces.size() > 1) {
    if (!gathered_) gathered_ = std::make_unique_for_overwrite<std::byte[]>(kRecordBytes);
    size = 0;
    for (const iovec& piece : pieces) {
      const std::size_t bytes = std::min(piece.iov_len, kRecordBytes - size);
      std::memcpy(gathered_.get() + size, piece.iov_base, bytes);
      size += bytes;
      if (size == kRecordBytes) break;
    }
    data = gathered_.get();
  }
  Moved moved;
  const int result = SSL_write_ex(session_, data, size, &moved.bytes);
  if (result == 1) return moved;
  return {0, wants_after(result)};
}

bool TlsSession::is_established() const { return SSL_is_init_finished(session_) == 1; }

void TlsSession::shut_down() {
  if (broken_ || !is_established()) return;
  ERR_clear_error();
  SSL_shutdown(session_);
  ERR_clear_error();
}

}  // namespace cairn::http
