#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"

namespace cairn {

// The XML that S3 answers with. It comes from outside: anything else is `malformed`.

// A page of ListObjectsV2.
struct S3Listing {
  struct Object {
    std::string key;
    std::uint64_t size_bytes = 0;
  };
  std::vector<Object> objects;
  bool is_truncated = false;  // more follow the last key
};
Result<S3Listing> read_listing(std::string_view xml);

// The text of each element by its path, "Result/Credentials/Token". Empty if it is no XML.
std::map<std::string, std::string, std::less<>> read_texts(std::string_view xml);

// An error's code and message as text, "SlowDown: Please reduce your request rate."; empty if the
// text is no error of S3.
std::string read_error(std::string_view xml);

}  // namespace cairn
