#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.hpp"
#include "transport/s3/http_session.hpp"

namespace cairn {

struct S3Keys {
  std::string id;
  std::string secret;
  std::string token = {};               // of a session; empty: none
  std::int64_t expires_at_unix_ms = 0;  // 0: never
};

// Where keys come from: the first of these that there is. No error has a secret in its text.
struct S3KeySource {
  std::string file = {};     // in the form of ~/.aws/credentials
  std::string profile = {};  // empty: AWS_PROFILE, or "default"
  bool instance = false;     // the machine's role, after all others
};

// Keys that this host has: `file`; AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN;
// AWS_SHARED_CREDENTIALS_FILE; ~/.aws/credentials. Errors: not_found, malformed.
Result<S3Keys> load_keys(const S3KeySource& source);

// Whether keys of a role are to be fetched, because load_keys() has none: by a web identity
// (AWS_ROLE_ARN and AWS_WEB_IDENTITY_TOKEN_FILE), from a container's service
// (AWS_CONTAINER_CREDENTIALS_FULL_URI or _RELATIVE_URI), or from the machine's.
bool has_role(const S3KeySource& source);

// Fetches keys of the role. `done` runs once, from session.poll(). Errors: unavailable, malformed,
// not_found.
void fetch_keys(HttpSession& session, const S3KeySource& source, const std::string& region,
                UniqueFunction<void(Result<S3Keys>)> done);

// The two forms in which services answer. Error: malformed.
Result<S3Keys> keys_from_json(std::string_view json);
Result<S3Keys> keys_from_xml(std::string_view xml);

}  // namespace cairn
