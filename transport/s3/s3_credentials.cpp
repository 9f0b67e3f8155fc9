#include "transport/s3/s3_credentials.hpp"

#include <cstdlib>
#include <fstream>
#include <map>
#include <string_view>

namespace cairn {
namespace {

// A file of credentials has a few lines for each profile.
constexpr std::size_t kMaxLines = 10'000;

std::string from_environment(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kBlank = " \t\r";
  const std::size_t first = text.find_first_not_of(kBlank);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kBlank) - first + 1);
}

// The profile's "name = value" lines.
std::map<std::string, std::string, std::less<>> read_profile(std::ifstream& file,
                                                             const std::string& profile) {
  std::map<std::string, std::string, std::less<>> fields;
  bool is_mine = false;
  std::string line;
  for (std::size_t i = 0; i < kMaxLines && std::getline(file, line); ++i) {
    const std::string_view text = trimmed(line);
    if (text.empty() || text[0] == '#' || text[0] == ';') continue;
    if (text[0] == '[') {
      is_mine = text == "[" + profile + "]";
      continue;
    }
    const std::size_t equals = text.find('=');
    if (!is_mine || equals == std::string_view::npos) continue;
    fields.insert_or_assign(std::string(trimmed(text.substr(0, equals))),
                            std::string(trimmed(text.substr(equals + 1))));
  }
  return fields;
}

Result<S3Keys> from_file(const std::string& path, std::string profile) {
  if (profile.empty()) profile = from_environment("AWS_PROFILE");
  if (profile.empty()) profile = "default";
  std::ifstream file(path);
  if (!file) return Error{ErrorCode::not_found, "'" + path + "' cannot be read"};
  auto fields = read_profile(file, profile);
  S3Keys keys{.id = fields["aws_access_key_id"],
              .secret = fields["aws_secret_access_key"],
              .token = fields["aws_session_token"]};
  if (keys.id.empty() || keys.secret.empty()) {
    return Error{ErrorCode::malformed, "'" + path +
                                           "' has no aws_access_key_id and "
                                           "aws_secret_access_key in [" +
                                           profile + "]"};
  }
  return keys;
}

}  // namespace

Result<S3Keys> load_keys(const S3KeySource& source) {
  if (!source.file.empty()) return from_file(source.file, source.profile);
  S3Keys keys{.id = from_environment("AWS_ACCESS_KEY_ID"),
              .secret = from_environment("AWS_SECRET_ACCESS_KEY"),
              .token = from_environment("AWS_SESSION_TOKEN")};
  if (!keys.id.empty() && !keys.secret.empty()) return keys;
  std::string path = from_environment("AWS_SHARED_CREDENTIALS_FILE");
  if (path.empty()) path = from_environment("HOME") + "/.aws/credentials";
  auto found = from_file(path, source.profile);
  if (found) return found;
  return Error{found.error().code,
               "no keys for the bucket: shared.s3.credentials_file and AWS_ACCESS_KEY_ID are not "
               "set, and " +
                   found.error().detail};
}

}  // namespace cairn
