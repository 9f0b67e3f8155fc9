#pragma once

#include <string>
#include <string_view>

#include "base/result.hpp"

namespace cairn {

// Returns `text` as a bearer token, without surrounding white space, which files and shells add.
// Empty if `text` is empty. Returns an error for other characters that a header cannot carry; the
// error names `source`, never the token.
Result<std::string> bearer_token(std::string_view text, std::string_view source);

}  // namespace cairn
