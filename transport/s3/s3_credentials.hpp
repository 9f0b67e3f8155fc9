#pragma once

#include <cstdint>
#include <string>

#include "base/result.hpp"

namespace cairn {

struct S3Keys {
  std::string id;
  std::string secret;
  std::string token = {};  // of a session; empty: none
};

// Where keys come from, in this order: `file`; AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and
// AWS_SESSION_TOKEN; AWS_SHARED_CREDENTIALS_FILE; ~/.aws/credentials. Errors: not_found, malformed;
// neither has a secret in its text.
struct S3KeySource {
  std::string file = {};
  std::string profile = {};  // empty: AWS_PROFILE, or "default"
};
Result<S3Keys> load_keys(const S3KeySource& source);

}  // namespace cairn
