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

// What no request of the contract needs more of; deeper nesting would be a way to exhaust a stack.
inline constexpr std::size_t kMaxNesting = 16;

// A document takes 16 bytes a value, and 128 for a list or an object, however few bytes of the body
// it was: one of those counts as so many.
inline constexpr std::size_t kContainerValues = 8;
// The largest request there is commits the blocks that one request may name: each is an object of
// nine members, with a list of 64 tokens in the object of its metadata.
inline constexpr std::size_t kValuesPerBlock = 3 * kContainerValues + 9 + 65;
// The body itself and what stands beside such a list.
inline constexpr std::size_t kValuesOfFrame = 64;
inline constexpr std::size_t kUsualBlocksPerRequest = 65'536;

// The most values of a document where a request may name so many blocks.
constexpr std::size_t max_document_values(std::size_t max_blocks) {
  return std::max(max_blocks, kUsualBlocksPerRequest) * kValuesPerBlock + kValuesOfFrame;
}
inline constexpr std::size_t kMaxDocumentValues = max_document_values(kUsualBlocksPerRequest);

// Reads a body. `malformed`, with the position, where it does not parse, is nested deeper than
// kMaxNesting, or gives a member twice; `out_of_range` at the first value too many.
Result<json> parse_document(std::span<const std::byte> body, WireFormat format,
                            std::size_t max_values = kMaxDocumentValues);
Result<json> parse_document(std::string_view text);
// A MessagePack body as JSON text, with the errors of parse_document().
Result<std::string> json_text_of(std::span<const std::byte> packed,
                                 std::size_t max_values = kMaxDocumentValues);

// A document as the body of a response. Text that is not UTF-8 is shown with replacement
// characters.
std::string write_document(const ordered_json& document, WireFormat format);
// JSON text in either format.
std::string write_text(std::string json_text, WireFormat format);

}  // namespace cairn
