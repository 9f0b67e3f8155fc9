#include "transport/s3/s3_credentials.hpp"

#include <ctime>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/environment.hpp"
#include "transport/s3/s3_answers.hpp"

namespace cairn {
namespace {

// A file of credentials has a few lines for each profile.
constexpr std::size_t kMaxLines = 10'000;

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
  if (profile.empty()) profile = variable("AWS_PROFILE");
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
  S3Keys keys{.id = variable("AWS_ACCESS_KEY_ID"),
              .secret = variable("AWS_SECRET_ACCESS_KEY"),
              .token = variable("AWS_SESSION_TOKEN")};
  if (!keys.id.empty() && !keys.secret.empty()) return keys;
  std::string path = variable("AWS_SHARED_CREDENTIALS_FILE");
  if (path.empty()) path = variable("HOME") + "/.aws/credentials";
  auto found = from_file(path, source.profile);
  if (found) return found;
  return Error{found.error().code,
               "no keys for the bucket: shared.s3.credentials_file and AWS_ACCESS_KEY_ID are not "
               "set, and " +
                   found.error().detail};
}

// --- roles
namespace {

// The longest token of a web identity: Kubernetes' have 1 to 2 KiB.
constexpr std::streamsize kMaxTokenBytes = 16 * 1024;
constexpr const char* kContainerHost = "http://169.254.170.2";
constexpr const char* kInstanceHost = "http://169.254.169.254";

using Done = UniqueFunction<void(Result<S3Keys>)>;

std::string environment_or(const char* name, const char* otherwise) {
  std::string value = variable(name);
  return value.empty() ? otherwise : value;
}

std::string first_line(std::string_view text) {
  return std::string(trimmed(text.substr(0, text.find('\n'))));
}

Result<std::string> read_token(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text(kMaxTokenBytes, '\0');
  if (!file) return Error{ErrorCode::not_found, "'" + path + "' cannot be read"};
  file.read(text.data(), kMaxTokenBytes);
  text.resize(static_cast<std::size_t>(file.gcount()));
  return first_line(text);
}

// "2026-11-25T12:00:00Z", with or without a fraction. 0: it is no time.
std::int64_t unix_ms_of(const std::string& text) {
  std::tm time{};
  if (::strptime(text.c_str(), "%Y-%m-%dT%H:%M:%S", &time) == nullptr) return 0;
  return static_cast<std::int64_t>(::timegm(&time)) * 1'000;
}

Result<S3Keys> whole(S3Keys keys) {
  if (keys.id.empty() || keys.secret.empty()) {
    return Error{ErrorCode::malformed, "the answer has no keys"};
  }
  return keys;
}

Error refused(std::string_view who, const HttpSession::Response& response) {
  std::string why = response.status == 0 ? response.error : read_error(response.text);
  if (why.empty()) why = "status " + std::to_string(response.status);
  return {ErrorCode::unavailable, "keys for the bucket: " + std::string(who) + ": " + why};
}

// Sends the request and reads its answer with `read`.
template <class Read>
void get_keys(HttpSession& session, HttpSession::Request request, std::string who, Read read,
              Done done) {
  session.start(std::move(request), [who = std::move(who), read, done = std::move(done)](
                                        const HttpSession::Response& response) mutable {
    if (response.status != 200) return done(refused(who, response));
    auto keys = read(response.text);
    if (!keys) return done(Error{keys.error().code, who + ": " + keys.error().detail});
    done(std::move(keys));
  });
}

void fetch_by_identity(HttpSession& session, const std::string& region, Done done) {
  auto token = read_token(variable("AWS_WEB_IDENTITY_TOKEN_FILE"));
  if (!token) return done(std::move(token).error());
  const std::string endpoint =
      environment_or("AWS_ENDPOINT_URL_STS", ("https://sts." + region + ".amazonaws.com").c_str());
  const std::string url =
      endpoint +
      "/?Action=AssumeRoleWithWebIdentity&RoleArn=" + url_encoded(variable("AWS_ROLE_ARN")) +
      "&RoleSessionName=" + url_encoded(environment_or("AWS_ROLE_SESSION_NAME", "cairn")) +
      "&Version=2011-06-15&WebIdentityToken=" + url_encoded(*token);
  get_keys(session, {.url = url}, "web identity", keys_from_xml, std::move(done));
}

void fetch_from_container(HttpSession& session, Done done) {
  const std::string full = variable("AWS_CONTAINER_CREDENTIALS_FULL_URI");
  HttpSession::Request request{
      .url = full.empty() ? kContainerHost + variable("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI")
                          : full};
  std::string token = variable("AWS_CONTAINER_AUTHORIZATION_TOKEN");
  if (const auto path = variable("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"); !path.empty()) {
    auto read = read_token(path);
    if (!read) return done(std::move(read).error());
    token = std::move(*read);
  }
  if (!token.empty()) request.headers.push_back("Authorization: " + token);
  get_keys(session, std::move(request), "container", keys_from_json, std::move(done));
}

// The machine's service, version 2: a token, the role's name, then its keys.
void fetch_from_instance(HttpSession& session, Done done) {
  const std::string host = environment_or("AWS_EC2_METADATA_SERVICE_ENDPOINT", kInstanceHost);
  const std::string roles = host + "/latest/meta-data/iam/security-credentials/";
  session.start(
      {.verb = HttpSession::Verb::put,
       .url = host + "/latest/api/token",
       .headers = {"X-aws-ec2-metadata-token-ttl-seconds: 21600"}},
      [&session, roles, done = std::move(done)](const HttpSession::Response& token) mutable {
        if (token.status != 200) return done(refused("instance", token));
        const std::string header = "X-aws-ec2-metadata-token: " + token.text;
        session.start(
            {.url = roles, .headers = {header}}, [&session, roles, header, done = std::move(done)](
                                                     const HttpSession::Response& role) mutable {
              if (role.status != 200) return done(refused("instance", role));
              get_keys(session,
                       {.url = roles + url_encoded(first_line(role.text)), .headers = {header}},
                       "instance", keys_from_json, std::move(done));
            });
      });
}

bool has_identity() {
  return !variable("AWS_ROLE_ARN").empty() && !variable("AWS_WEB_IDENTITY_TOKEN_FILE").empty();
}

bool has_container() {
  return !variable("AWS_CONTAINER_CREDENTIALS_FULL_URI").empty() ||
         !variable("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI").empty();
}

}  // namespace

bool has_role(const S3KeySource& source) {
  return source.file.empty() && (has_identity() || has_container() || source.instance);
}

void fetch_keys(HttpSession& session, const S3KeySource& source, const std::string& region,
                UniqueFunction<void(Result<S3Keys>)> done) {
  if (has_identity()) return fetch_by_identity(session, region, std::move(done));
  if (has_container()) return fetch_from_container(session, std::move(done));
  if (source.instance) return fetch_from_instance(session, std::move(done));
  done(Error{ErrorCode::not_found, "there is no role to fetch keys of"});
}

Result<S3Keys> keys_from_json(std::string_view text) {
  const auto json = nlohmann::json::parse(text, nullptr, false);
  const auto field = [&json](const char* name) {
    const auto at = json.is_object() ? json.find(name) : json.end();
    return at != json.end() && at->is_string() ? at->get<std::string>() : std::string();
  };
  return whole({.id = field("AccessKeyId"),
                .secret = field("SecretAccessKey"),
                .token = field("Token"),
                .expires_at_unix_ms = unix_ms_of(field("Expiration"))});
}

Result<S3Keys> keys_from_xml(std::string_view xml) {
  const auto fields = read_texts(xml);
  const auto field = [&fields](const char* name) {
    const auto at = fields.find(std::string("AssumeRoleWithWebIdentityResponse/"
                                            "AssumeRoleWithWebIdentityResult/Credentials/") +
                                name);
    return at == fields.end() ? std::string() : at->second;
  };
  return whole({.id = field("AccessKeyId"),
                .secret = field("SecretAccessKey"),
                .token = field("SessionToken"),
                .expires_at_unix_ms = unix_ms_of(field("Expiration"))});
}

}  // namespace cairn
