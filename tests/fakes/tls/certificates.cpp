#include "tests/fakes/tls/certificates.hpp"

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <cstdio>
#include <memory>
#include <stdexcept>

namespace cairn::fakes {
namespace {

using Key = std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)>;
using Certificate = std::unique_ptr<X509, decltype(&X509_free)>;
using File = std::unique_ptr<std::FILE, decltype(&std::fclose)>;

void must(bool done, const char* what) {
  if (!done) throw std::runtime_error(std::string("no certificate: ") + what);
}

File open(const std::string& path, const char* mode) {
  File file(std::fopen(path.c_str(), mode), std::fclose);
  must(file != nullptr, path.c_str());
  return file;
}

void add_extension(X509* certificate, int kind, const char* value) {
  X509V3_CTX context;
  X509V3_set_ctx_nodb(&context);
  X509V3_set_ctx(&context, certificate, certificate, nullptr, nullptr, 0);
  X509_EXTENSION* extension = X509V3_EXT_conf_nid(nullptr, &context, kind, value);
  must(extension != nullptr && X509_add_ext(certificate, extension, -1) == 1, value);
  X509_EXTENSION_free(extension);
}

}  // namespace

CertificateFiles make_certificate(const std::filesystem::path& folder,
                                  const CertificateRequest& request) {
  static long serial = 0;
  const Key key(EVP_EC_gen("P-256"), EVP_PKEY_free);
  const Certificate certificate(X509_new(), X509_free);
  must(key != nullptr && certificate != nullptr, "no memory");
  X509_set_version(certificate.get(), 2);
  ASN1_INTEGER_set(X509_get_serialNumber(certificate.get()), ++serial);
  X509_gmtime_adj(X509_getm_notBefore(certificate.get()), -3600);
  X509_gmtime_adj(X509_getm_notAfter(certificate.get()), 3600);
  X509_set_pubkey(certificate.get(), key.get());
  X509_NAME* subject = X509_get_subject_name(certificate.get());
  X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_ASC,
                             reinterpret_cast<const unsigned char*>(request.name.c_str()), -1, -1,
                             0);
  const bool is_authority = request.authority.certificate.empty();
  add_extension(certificate.get(), NID_subject_alt_name, "DNS:localhost,IP:127.0.0.1");
  if (is_authority) {
    add_extension(certificate.get(), NID_basic_constraints, "critical,CA:TRUE");
    X509_set_issuer_name(certificate.get(), subject);
    must(X509_sign(certificate.get(), key.get(), EVP_sha256()) > 0, "not signed");
  } else {
    const Certificate issuer(
        PEM_read_X509(open(request.authority.certificate, "r").get(), nullptr, nullptr, nullptr),
        X509_free);
    const Key signer(
        PEM_read_PrivateKey(open(request.authority.key, "r").get(), nullptr, nullptr, nullptr),
        EVP_PKEY_free);
    must(issuer != nullptr && signer != nullptr, "no authority");
    X509_set_issuer_name(certificate.get(), X509_get_subject_name(issuer.get()));
    must(X509_sign(certificate.get(), signer.get(), EVP_sha256()) > 0, "not signed");
  }
  CertificateFiles files{(folder / (request.name + ".pem")).string(),
                         (folder / (request.name + ".key")).string()};
  must(PEM_write_X509(open(files.certificate, "w").get(), certificate.get()) == 1, "not written");
  must(PEM_write_PrivateKey(open(files.key, "w").get(), key.get(), nullptr, nullptr, 0, nullptr,
                            nullptr) == 1,
       "not written");
  return files;
}

}  // namespace cairn::fakes
