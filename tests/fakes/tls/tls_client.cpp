#include "tests/fakes/tls/tls_client.hpp"

#include <netinet/in.h>
#include <openssl/ssl.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <csignal>

namespace cairn::fakes {

struct TlsClient::Parts {
  ~Parts() {
    SSL_free(session);
    SSL_CTX_free(context);
    if (fd >= 0) ::close(fd);
  }
  SSL_CTX* context = nullptr;
  SSL* session = nullptr;
  int fd = -1;
};

TlsClient::TlsClient(const Setup& setup) : parts_(std::make_unique<Parts>()) {
  std::signal(SIGPIPE, SIG_IGN);
  Parts& parts = *parts_;
  parts.context = SSL_CTX_new(TLS_client_method());
  SSL_CTX_load_verify_locations(parts.context, setup.authority.c_str(), nullptr);
  SSL_CTX_set_verify(parts.context, SSL_VERIFY_PEER, nullptr);
  if (!setup.certificate.certificate.empty()) {
    SSL_CTX_use_certificate_chain_file(parts.context, setup.certificate.certificate.c_str());
    SSL_CTX_use_PrivateKey_file(parts.context, setup.certificate.key.c_str(), SSL_FILETYPE_PEM);
  }
  if (!setup.suites_1_2.empty()) {
    SSL_CTX_set_max_proto_version(parts.context, TLS1_2_VERSION);
    SSL_CTX_set_cipher_list(parts.context, setup.suites_1_2.c_str());
  }
  parts.fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const timeval give_up{20, 0};
  ::setsockopt(parts.fd, SOL_SOCKET, SO_RCVTIMEO, &give_up, sizeof give_up);
  ::setsockopt(parts.fd, SOL_SOCKET, SO_SNDTIMEO, &give_up, sizeof give_up);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(setup.port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::connect(parts.fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) return;
  parts.session = SSL_new(parts.context);
  SSL_set_fd(parts.session, parts.fd);
  if (!setup.protocols.empty()) {
    SSL_set_alpn_protos(parts.session,
                        reinterpret_cast<const unsigned char*>(setup.protocols.data()),
                        static_cast<unsigned>(setup.protocols.size()));
  }
  connected_ = SSL_connect(parts.session) == 1;
}

TlsClient::~TlsClient() = default;

bool TlsClient::send(std::string_view bytes) {
  std::size_t written = 0;
  return connected_ && SSL_write_ex(parts_->session, bytes.data(), bytes.size(), &written) == 1 &&
         written == bytes.size();
}

std::string TlsClient::receive(std::size_t bytes) {
  std::string text(bytes, '\0');
  std::size_t filled = 0;
  while (connected_ && filled < bytes) {
    std::size_t more = 0;
    if (SSL_read_ex(parts_->session, text.data() + filled, bytes - filled, &more) != 1) break;
    filled += more;
  }
  text.resize(filled);
  return text;
}

std::string TlsClient::receive_response() {
  std::string head;
  while (head.find("\r\n\r\n") == std::string::npos) {
    const std::string byte = receive(1);
    if (byte.empty()) return {};
    head += byte;
  }
  constexpr std::string_view kLength = "Content-Length: ";
  const std::size_t at = head.find(kLength);
  if (at == std::string::npos) return head;
  const std::size_t bytes = std::stoul(head.substr(at + kLength.size()));
  const std::string body = receive(bytes);
  return body.size() == bytes ? head + body : std::string();
}

std::string TlsClient::version() const { return SSL_get_version(parts_->session); }

std::string TlsClient::suite() const { return SSL_get_cipher_name(parts_->session); }

std::string TlsClient::protocol() const {
  const unsigned char* name = nullptr;
  unsigned bytes = 0;
  SSL_get0_alpn_selected(parts_->session, &name, &bytes);
  return {reinterpret_cast<const char*>(name), bytes};
}

std::string TlsClient::peer() const {
  X509* certificate = SSL_get0_peer_certificate(parts_->session);
  if (certificate == nullptr) return {};
  char name[256] = "";
  X509_NAME_get_text_by_NID(X509_get_subject_name(certificate), NID_commonName, name, sizeof name);
  return name;
}

}  // namespace cairn::fakes
