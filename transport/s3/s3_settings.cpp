#include "transport/s3/s3_settings.hpp"

#include <algorithm>
#include <cctype>

namespace cairn {
namespace {

// Names of S3's objects and buckets that need no escaping in a URL, so that the signed path is the
// sent one.
bool is_plain(std::string_view text) {
  return std::ranges::all_of(text, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_' || c == '.';
  });
}

// S3's own limits for the name of a bucket.
constexpr std::size_t kMinBucketBytes = 3;
constexpr std::size_t kMaxBucketBytes = 63;
// An object's name has at most 1,024; the rest is for what follows the prefix.
constexpr std::size_t kMaxPrefixBytes = 512;

Error wrong(std::string_view field, std::string_view value, std::string_view why) {
  return {ErrorCode::malformed,
          std::string(field) + " is '" + std::string(value) + "', " + std::string(why)};
}

}  // namespace

Result<> check(const S3Settings& settings) {
  const std::string& bucket = settings.bucket;
  if (bucket.size() < kMinBucketBytes || bucket.size() > kMaxBucketBytes || !is_plain(bucket)) {
    return wrong("bucket", bucket, "not the name of a bucket: 3 to 63 letters, digits and .-_");
  }
  std::string_view rest = settings.prefix;
  while (!rest.empty()) {
    const std::string_view part = rest.substr(0, rest.find('/'));
    if (part.empty() || !is_plain(part) || part == "." || part == "..") {
      return wrong("prefix", settings.prefix,
                   "which must be words of letters, digits and .-_, "
                   "with / between them");
    }
    rest.remove_prefix(std::min(rest.size(), part.size() + 1));
  }
  if (settings.prefix.empty() || settings.prefix.size() > kMaxPrefixBytes ||
      settings.prefix.ends_with('/')) {
    return wrong("prefix", settings.prefix, "which must have 1 to 512 bytes and not end with /");
  }
  if (settings.region.empty() || !is_plain(settings.region)) {
    return wrong("region", settings.region, "not the name of a region");
  }
  if (const std::string& url = settings.endpoint; !url.empty()) {
    const bool is_http = url.starts_with("http://") || url.starts_with("https://");
    const auto host = is_http ? std::string_view(url).substr(url.find("://") + 3) : "";
    if (host.empty() || host.find_first_of("/?#@ \r\n") != std::string_view::npos) {
      return wrong("endpoint", url, "not of the form http(s)://HOST[:PORT]");
    }
  }
  return {};
}

std::string url_encoded(std::string_view text) {
  constexpr std::string_view kDigits = "0123456789ABCDEF";
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (std::isalnum(byte) != 0 || c == '-' || c == '_' || c == '.' || c == '~') {
      out += c;
    } else {
      out += {'%', kDigits[byte >> 4], kDigits[byte & 15]};
    }
  }
  return out;
}

std::string bucket_url(const S3Settings& settings) {
  const std::string endpoint = settings.endpoint.empty()
                                   ? "https://s3." + settings.region + ".amazonaws.com"
                                   : settings.endpoint;
  if (settings.path_style) return endpoint + "/" + settings.bucket;
  const std::size_t host = endpoint.find("://") + 3;
  return endpoint.substr(0, host) + settings.bucket + "." + endpoint.substr(host);
}

}  // namespace cairn
