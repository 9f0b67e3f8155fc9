#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "tests/fakes/tls/certificates.hpp"

namespace cairn::fakes {

// A blocking TLS client to 127.0.0.1, on OpenSSL. Each wait ends after 20 s.
class TlsClient {
 public:
  struct Setup {
    std::uint16_t port = 0;
    std::string authority;              // the PEM file that must have signed the server's
    CertificateFiles certificate = {};  // its own; empty: none
    std::string protocols = {};         // ALPN, as "\x08http/1.1"; empty: none are offered
    std::string suites_1_2 = {};        // suites of TLS 1.2, which it then uses; empty: TLS 1.3
  };
  explicit TlsClient(const Setup& setup);
  ~TlsClient();
  TlsClient(const TlsClient&) = delete;
  TlsClient& operator=(const TlsClient&) = delete;

  // Whether the handshake succeeded with a valid server certificate.
  bool connected() const { return connected_; }
  bool send(std::string_view bytes);
  // The next `bytes` bytes; fewer if the connection ends before.
  std::string receive(std::size_t bytes);
  // A whole response with a Content-Length; empty if none comes.
  std::string receive_response();
  std::string version() const;   // "TLSv1.3"
  std::string suite() const;     // "ECDHE-ECDSA-AES256-GCM-SHA384"
  std::string protocol() const;  // what ALPN chose
  std::string peer() const;      // the common name of the server's certificate

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
  bool connected_ = false;
};

}  // namespace cairn::fakes
