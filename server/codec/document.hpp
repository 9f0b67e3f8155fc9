#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>

#include "base/result.hpp"

namespace cairn {

using nlohmann::json;
using nlohmann::ordered_json;

enum class WireFormat : std::uint8_t { text, msgpack };  // JSON as text, or MessagePack

// What no request of the contract needs more of; deeper nesting would be a way to exhaust a stack.
inline constexpr std::size_t kMaxNesting = 16;

// Reads a body. `malformed`, with the position, where it does not parse, is nested deeper than
// kMaxNesting, or gives a member twice.
Result<json> parse_document(std::span<const std::byte> body, WireFormat format);
Result<json> parse_document(std::string_view text);

// A document as the body of a response. Text that is not UTF-8 is shown with replacement
// characters.
std::string write_document(const ordered_json& document, WireFormat format);
// JSON text in either format.
std::string write_text(std::string json_text, WireFormat format);

}  // namespace cairn
