#pragma once

#include <string>
#include <string_view>

#include "base/result.hpp"

namespace cairn {

// A bearer token as it goes into a header: `text` without the white space around it, which files
// and shells leave there. Empty for an empty `text`. Whatever else a header cannot carry is an
// error, which names where the token came from (`source`) and never the token.
Result<std::string> bearer_token(std::string_view text, std::string_view source);

}  // namespace cairn
