#pragma once

#include <algorithm>
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

// No request needs more. Deeper nesting could exhaust the stack.
inline constexpr std::size_t kMaxNesting = 16;

// A list or an object counts as this many values: in memory it takes 128 bytes and a plain value
// 16, however short their text is.
inline constexpr std::size_t kContainerValues = 8;
// The largest request commits as many blocks as one request may name. Each block is an object of
// nine members. Its metadata is an object with a list of 64 tokens.
inline constexpr std::size_t kValuesPerBlock = 3 * kContainerValues + 9 + 65;
// The body itself and its members beside that list.
inline constexpr std::size_t kValuesOfFrame = 64;
inline constexpr std::size_t kUsualBlocksPerRequest = 65'536;

// The limit for a server that allows `max_blocks` blocks per request.
constexpr std::size_t max_document_values(std::size_t max_blocks) {
  return std::max(max_blocks, kUsualBlocksPerRequest) * kValuesPerBlock + kValuesOfFrame;
}
inline constexpr std::size_t kMaxDocumentValues = max_document_values(kUsualBlocksPerRequest);

// Parses a body. Errors: malformed, with the position, if it does not parse, is nested deeper than
// kMaxNesting or repeats a member; out_of_range if it has too many values.
Result<json> parse_document(std::span<const std::byte> body, WireFormat format,
                            std::size_t max_values = kMaxDocumentValues);
Result<json> parse_document(std::string_view text);
// Converts a MessagePack body to JSON text. Errors: those of parse_document().
Result<std::string> json_text_of(std::span<const std::byte> packed,
                                 std::size_t max_values = kMaxDocumentValues);

// The body of a response. Invalid UTF-8 becomes replacement characters.
std::string write_document(const ordered_json& document, WireFormat format);
// Converts JSON text to `format`.
std::string write_text(std::string json_text, WireFormat format);

}  // namespace cairn
