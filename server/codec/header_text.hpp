#pragma once

#include <string_view>

namespace cairn {

// Removes the spaces and tabs around a field's value (OWS, RFC 9110 5.6.3).
inline std::string_view trimmed(std::string_view text) {
  const auto blank = [](char c) { return c == ' ' || c == '\t'; };
  while (!text.empty() && blank(text.back())) text.remove_suffix(1);
  while (!text.empty() && blank(text.front())) text.remove_prefix(1);
  return text;
}

}  // namespace cairn
