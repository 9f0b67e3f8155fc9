#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "base/result.hpp"

namespace cairn {

struct ByteRange {
  std::uint64_t offset_bytes = 0;
  std::uint64_t size_bytes = 0;  // at least 1
  friend bool operator==(const ByteRange&, const ByteRange&) = default;
};

// Applies a Range header to a body of `total_bytes` (RFC 9110). Returns nullopt, so that the whole
// body is sent, if the header is empty, not understood, or has several ranges. Error:
// range_not_satisfiable if the range has no byte of the body.
Result<std::optional<ByteRange>> parse_range(std::string_view header, std::uint64_t total_bytes);

// Whether If-None-Match matches the (strong) tag: it is "*" or lists the tag. Weak marks are
// ignored.
bool names_etag(std::string_view if_none_match, std::string_view etag);

}  // namespace cairn
