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

// A Range header against a body of `total_bytes` (RFC 9110). Nothing where there is no range to
// honour: none is asked for, it is not understood, or several are asked for; then all is sent.
// range_not_satisfiable where it lies behind the end.
Result<std::optional<ByteRange>> parse_range(std::string_view header, std::uint64_t total_bytes);

// Whether If-None-Match names the (strong) tag: "*", or a list that holds it. A weak mark does not
// matter here.
bool names_etag(std::string_view if_none_match, std::string_view etag);

}  // namespace cairn
