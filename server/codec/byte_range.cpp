#include "server/codec/byte_range.hpp"

#include <algorithm>
#include <charconv>
#include <string>

#include "server/codec/header_text.hpp"

namespace cairn {
namespace {

// Reads a position. UINT64_MAX if it exceeds 64 bits, nullopt if it is not a number.
std::optional<std::uint64_t> position(std::string_view digits) {
  if (digits.empty() || digits.find_first_not_of("0123456789") != std::string_view::npos) {
    return std::nullopt;
  }
  std::uint64_t value = 0;
  const auto error = std::from_chars(digits.data(), digits.data() + digits.size(), value).ec;
  return error == std::errc() ? value : UINT64_MAX;
}

}  // namespace

Result<std::optional<ByteRange>> parse_range(std::string_view header, std::uint64_t total_bytes) {
  constexpr std::string_view kUnit = "bytes=";
  const std::optional<ByteRange> all;
  if (!header.starts_with(kUnit)) return all;
  const std::string_view range = trimmed(header.substr(kUnit.size()));
  const auto dash = range.find('-');
  if (dash == std::string_view::npos || range.find(',') != std::string_view::npos) return all;

  const std::string_view first_text = trimmed(range.substr(0, dash));
  const std::string_view last_text = trimmed(range.substr(dash + 1));
  const auto last = position(last_text);
  if (first_text.empty()) {  // the last n bytes
    if (!last) return all;
    const std::uint64_t size = std::min(*last, total_bytes);
    if (size > 0) return std::optional(ByteRange{total_bytes - size, size});
  } else {
    const auto first = position(first_text);
    if (!first || (!last && !last_text.empty()) || (last && *last < *first)) return all;
    if (*first < total_bytes) {
      const std::uint64_t end = last ? std::min(*last, total_bytes - 1) : total_bytes - 1;
      return std::optional(ByteRange{*first, end - *first + 1});
    }
  }
  return Error{ErrorCode::range_not_satisfiable, "Range is '" + std::string(header.substr(0, 64)) +
                                                     "', of " + std::to_string(total_bytes) +
                                                     " bytes"};
}

bool names_etag(std::string_view if_none_match, std::string_view etag) {
  std::string_view rest = if_none_match;
  while (!rest.empty()) {
    const auto end = std::min(rest.find(','), rest.size());
    std::string_view tag = trimmed(rest.substr(0, end));
    if (tag.starts_with("W/")) tag.remove_prefix(2);
    if (tag == "*" || tag == etag) return true;
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  return false;
}

}  // namespace cairn
