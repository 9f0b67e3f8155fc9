#pragma once

#include <filesystem>
#include <string>

namespace cairn::fakes {

// A certificate and its key, as PEM files in a folder of the test's.
struct CertificateFiles {
  std::string certificate;
  std::string key;
};

struct CertificateRequest {
  std::string name;  // of the files and of the subject
  // Who signs it; empty: itself, and it may sign others.
  CertificateFiles authority = {};
};

// Of 127.0.0.1 and localhost, for an hour; elliptic curve keys, which take no time. Throws
// std::runtime_error.
CertificateFiles make_certificate(const std::filesystem::path& folder,
                                  const CertificateRequest& request);

}  // namespace cairn::fakes
