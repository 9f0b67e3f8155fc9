#pragma once

#include <string>
#include <string_view>

namespace cairn {

// Appends text escaped for logs and terminals: bytes other than printable ASCII as \xNN, and a
// backslash before backslashes and quotes. So data from files or clients cannot forge lines or
// control a terminal.
void append_printable(std::string& line, std::string_view text);
std::string printable(std::string_view text);

}  // namespace cairn
