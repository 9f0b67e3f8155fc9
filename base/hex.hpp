#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace cairn {

// Writes two lower-case digits per byte; `out` must have room.
void write_hex(std::span<const std::byte> bytes, char* out);
// Appends two lower-case digits per byte.
void append_hex(std::string& out, std::span<const std::byte> bytes);
std::string to_hex(std::span<const std::byte> bytes);

// Reads hex of either case. Returns false, with `out` unspecified, if `out` is not exactly
// hex.size() / 2 bytes, or if a character is not a hex digit.
bool from_hex(std::string_view hex, std::span<std::byte> out);

}  // namespace cairn
