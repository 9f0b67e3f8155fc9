#include "base/printable.hpp"

namespace cairn {

void append_printable(std::string& line, std::string_view text) {
  constexpr std::string_view digits = "0123456789abcdef";
  for (char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      line += '\\';
      line += c;
    } else if (byte < 0x20 || byte >= 0x7F) {
      line += "\\x";
      line += digits[byte >> 4];
      line += digits[byte & 15];
    } else {
      line += c;
    }
  }
}

std::string printable(std::string_view text) {
  std::string line;
  append_printable(line, text);
  return line;
}

}  // namespace cairn
