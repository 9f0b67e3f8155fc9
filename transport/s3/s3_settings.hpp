#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.hpp"

namespace cairn {

// Bounds of what a bucket may cost. 0: no bound.
struct S3Bounds {
  std::uint64_t capacity_bytes = 0;  // of all servers' objects below the prefix
  std::uint64_t requests_per_s = 0;
  std::uint64_t requests_per_day = 0;
  std::uint64_t bytes_per_s = 0;  // both directions together
};

// Prices of a provider, in any currency. 0: nothing.
struct S3Prices {
  double million_puts = 0;  // and lists
  double million_gets = 0;
  double gib_received = 0;
  double gib_month = 0;  // stored
};

// How to reach a bucket, and how its objects are made.
struct S3Settings {
  std::string endpoint = {};  // http(s)://HOST[:PORT]; empty: Amazon's for the region
  std::string region = "us-east-1";
  std::string bucket = {};
  std::string prefix = "cairn";  // of the objects' names; without "/" at its ends
  bool path_style = true;        // ENDPOINT/BUCKET/KEY; false: BUCKET.ENDPOINT/KEY
  // A file in the form of ~/.aws/credentials; empty: see S3Credentials.
  std::string credentials_file = {};
  std::string profile = {};    // empty: AWS_PROFILE, or "default"
  bool instance_role = false;  // the machine\'s role may be used
  std::string ca = {};         // PEM file; empty: the system's
  std::string proxy = {};      // empty: the environment's (https_proxy)
  std::uint32_t connections = 8;
  // A request fails if no byte moves for this long.
  std::uint32_t timeout_ms = 5'000;
  std::uint32_t max_queued = 4'096;  // values waiting to be read or written
  // Values are gathered into objects of this size, or of what came in within `linger_ms`. One
  // request then reads a long prefix, and writing costs a request per object, not per block.
  std::uint64_t object_bytes = 32ull << 20;
  std::uint32_t linger_ms = 500;
  // How often to ask for the objects that other servers have added.
  std::uint32_t poll_ms = 30'000;
  std::string writer = {};  // this server's name in the objects' names: 1 to 16 of [0-9a-z]
  S3Bounds bounds = {};
  S3Prices prices = {};
};

// Checks what can be checked without a request. Error: malformed, which names the field.
Result<> check(const S3Settings& settings);

// A part of a URL's query: everything but letters, digits and -_.~ is escaped, as AWS signs it.
std::string url_encoded(std::string_view text);

// The URL of the bucket, without "/" at its end.
std::string bucket_url(const S3Settings& settings);

}  // namespace cairn
