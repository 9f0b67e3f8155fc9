#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace cairn {

// Writes two lower-case digits a byte to `out`, which has room for them.
void write_hex(std::span<const std::byte> bytes, char* out);
// Appends two lower-case digits a byte.
void append_hex(std::string& out, std::span<const std::byte> bytes);
std::string to_hex(std::span<const std::byte> bytes);

// Reads hex of either case into `out`, which holds exactly hex.size() / 2 bytes. False, with `out`
// unspecified, where the length is odd, `out` has another size, or a character is no hex digit.
bool from_hex(std::string_view hex, std::span<std::byte> out);

}  // namespace cairn
