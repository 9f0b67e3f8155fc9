#pragma once

#include <filesystem>
#include <string>

namespace cairn::fakes {

// A certificate and its key, as PEM files in the test's folder.
struct CertificateFiles {
  std::string certificate;
  std::string key;
};

struct CertificateRequest {
  std::string name;  // of the files and of the subject
  // The signer; empty: it signs itself and may sign others.
  CertificateFiles authority = {};
};

// Valid for 127.0.0.1 and localhost, for an hour. Uses elliptic curve keys, which are fast to make.
// Throws std::runtime_error.
CertificateFiles make_certificate(const std::filesystem::path& folder,
                                  const CertificateRequest& request);

}  // namespace cairn::fakes
