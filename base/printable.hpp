#pragma once

#include <string>
#include <string_view>

namespace cairn {

// Appends the text for a line that people and terminals read: every byte that is not printable
// ASCII as \xNN, so that what comes from a file or a client neither forges a line nor steers a
// terminal; a backslash and a quote have a backslash before them.
void append_printable(std::string& line, std::string_view text);
std::string printable(std::string_view text);

}  // namespace cairn
