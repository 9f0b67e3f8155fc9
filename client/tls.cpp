#include "client/tls.hpp"

#include <arpa/inet.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509_vfy.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

namespace cairn::client {
namespace {

// Limit of one call: OpenSSL counts in int.
constexpr std::size_t kMostBytes = std::size_t{1} << 30U;

std::string last_reason() {
  char text[256] = "unknown";
  if (const unsigned long code = ERR_peek_last_error(); code != 0) {
    ERR_error_string_n(code, text, sizeof text);
  }
  ERR_clear_error();
  return text;
}

ClientError refused(const std::string& why) { return {0, kNotConnected, why}; }

// OpenSSL's own socket BIO uses write(), which raises SIGPIPE if the server has closed.
int send_quietly(BIO* bio, const char* data, int size) {
  BIO_clear_retry_flags(bio);
  const auto sent = ::send(static_cast<int>(BIO_get_fd(bio, nullptr)), data,
                           static_cast<std::size_t>(size), MSG_NOSIGNAL);
  if (sent < 0 && BIO_sock_should_retry(-1) != 0) BIO_set_retry_write(bio);
  return static_cast<int>(sent);
}

const BIO_METHOD* quiet_socket() {
  static const std::unique_ptr<BIO_METHOD, decltype(&BIO_meth_free)> method = [] {
    const BIO_METHOD* plain = BIO_s_socket();
    BIO_METHOD* made = BIO_meth_new(BIO_TYPE_SOCKET, "socket without SIGPIPE");
    BIO_meth_set_write(made, send_quietly);
    BIO_meth_set_read(made, BIO_meth_get_read(plain));
    BIO_meth_set_ctrl(made, BIO_meth_get_ctrl(plain));
    BIO_meth_set_create(made, BIO_meth_get_create(plain));
    BIO_meth_set_destroy(made, BIO_meth_get_destroy(plain));
    return std::unique_ptr<BIO_METHOD, decltype(&BIO_meth_free)>(made, BIO_meth_free);
  }();
  return method.get();
}

bool is_address(const std::string& host) {
  in6_addr any;
  return ::inet_pton(AF_INET, host.c_str(), &any) == 1 ||
         ::inet_pton(AF_INET6, host.c_str(), &any) == 1;
}

using Context = std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)>;

Answer<Context> make_context(const TlsFiles& files) {
  Context context(SSL_CTX_new(TLS_client_method()), SSL_CTX_free);
  SSL_CTX* raw = context.get();
  if (raw == nullptr) return refused("no TLS: " + last_reason());
  SSL_CTX_set_min_proto_version(raw, TLS1_2_VERSION);
  SSL_CTX_set_mode(raw, SSL_MODE_ENABLE_PARTIAL_WRITE);
  SSL_CTX_set_verify(raw, files.any_certificate ? SSL_VERIFY_NONE : SSL_VERIFY_PEER, nullptr);
  const auto unusable = [](const std::string& what, const std::string& path) {
    return refused(what + " '" + path + "' cannot be used: " + last_reason());
  };
  if (files.authority.empty()) {
    SSL_CTX_set_default_verify_paths(raw);
  } else if (SSL_CTX_load_verify_locations(raw, files.authority.c_str(), nullptr) != 1) {
    return unusable("the authority", files.authority);
  }
  if (files.certificate.empty()) return context;
  if (SSL_CTX_use_certificate_chain_file(raw, files.certificate.c_str()) != 1) {
    return unusable("the certificate", files.certificate);
  }
  if (SSL_CTX_use_PrivateKey_file(raw, files.key.c_str(), SSL_FILETYPE_PEM) != 1 ||
      SSL_CTX_check_private_key(raw) != 1) {
    return unusable("the key", files.key);
  }
  return context;
}

}  // namespace

void TlsChannel::Free::operator()(ssl_st* session) const { SSL_free(session); }

Answer<TlsChannel> TlsChannel::open(const Setup& setup) {
  ERR_clear_error();
  auto context = make_context(setup.files);
  if (!context) return std::move(context).error();
  TlsChannel channel(SSL_new(context->get()));
  SSL* const session = channel.session_.get();
  BIO* const socket = session == nullptr ? nullptr : BIO_new(quiet_socket());
  if (socket == nullptr) return refused("no TLS: " + last_reason());
  BIO_set_fd(socket, setup.fd, BIO_NOCLOSE);
  SSL_set_bio(session, socket, socket);
  const char* const host = setup.host.c_str();
  const bool checked =
      is_address(setup.host)
          ? X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(session), host) == 1
          : SSL_set1_host(session, host) == 1 && SSL_set_tlsext_host_name(session, host) == 1;
  if (!checked) return refused("no TLS to '" + setup.host + "': " + last_reason());
  const int result = SSL_connect(session);
  if (result == 1) return channel;
  if (const long found = SSL_get_verify_result(session); found != X509_V_OK) {
    channel.broken_ = true;
    ERR_clear_error();
    return refused("the server's certificate is not accepted: " +
                   std::string(X509_verify_cert_error_string(found)));
  }
  return refused(channel.failure("the TLS handshake", result).detail);
}

TlsChannel::~TlsChannel() {
  if (!session_ || broken_ || SSL_is_init_finished(session_.get()) != 1) return;
  ERR_clear_error();
  SSL_shutdown(session_.get());
  ERR_clear_error();
}

ClientError TlsChannel::failure(const std::string& what, int result) {
  const int system_error = errno;
  broken_ = true;
  switch (SSL_get_error(session_.get(), result)) {
    case SSL_ERROR_WANT_READ:
    case SSL_ERROR_WANT_WRITE:
      // The timeout of the socket has passed.
      return {0, kTimeout, what + ": timed out"};
    case SSL_ERROR_SYSCALL:
      ERR_clear_error();
      return {0, kClosedEarly,
              what + ": " +
                  (system_error == 0 ? "the connection ended"
                                     : std::generic_category().message(system_error))};
    default:
      return {0, kClosedEarly, what + ": " + last_reason()};
  }
}

Answer<std::size_t> TlsChannel::send(const iovec& piece) {
  ERR_clear_error();
  std::size_t sent = 0;
  const int result =
      SSL_write_ex(session_.get(), piece.iov_base, std::min(piece.iov_len, kMostBytes), &sent);
  if (result != 1) return failure("sending a request", result);
  return sent;
}

Answer<std::size_t> TlsChannel::receive(const iovec& room) {
  ERR_clear_error();
  std::size_t received = 0;
  const int result =
      SSL_read_ex(session_.get(), room.iov_base, std::min(room.iov_len, kMostBytes), &received);
  if (result == 1) return received;
  if (SSL_get_error(session_.get(), result) == SSL_ERROR_ZERO_RETURN) return std::size_t{0};
  return failure("receiving an answer", result);
}

bool TlsChannel::has_more() const { return SSL_pending(session_.get()) > 0; }

}  // namespace cairn::client
