#include "base/token.hpp"

#include <algorithm>

namespace cairn {

Result<std::string> bearer_token(std::string_view text, std::string_view source) {
  constexpr std::string_view kWhiteSpace = " \t\n\v\f\r";
  if (text.empty()) return std::string();
  const std::size_t first = text.find_first_not_of(kWhiteSpace);
  if (first == std::string_view::npos) {
    return Error{ErrorCode::malformed, std::string(source) + " has white space and no token"};
  }
  text = text.substr(first, text.find_last_not_of(kWhiteSpace) - first + 1);
  const auto is_visible = [](char character) { return character >= '!' && character <= '~'; };
  if (!std::ranges::all_of(text, is_visible)) {
    return Error{ErrorCode::malformed, std::string(source) +
                                           " has white space, or what is not ASCII, within "
                                           "the token"};
  }
  return std::string(text);
}

}  // namespace cairn
