#pragma once

#include <string_view>

#include "base/result.hpp"
#include "server/codec/document.hpp"

namespace cairn {

inline constexpr std::string_view kJsonType = "application/json";
inline constexpr std::string_view kMsgpackType = "application/msgpack";
inline constexpr std::string_view kBytesType = "application/octet-stream";

// The format of a structured body, by its Content-Type without parameters. Error:
// unsupported_media_type for other types and for none. This refuses forms and plain text, which a
// browser sends for any page without asking this server first.
Result<WireFormat> body_format(std::string_view content_type);
// Checks the type of a body of plain bytes. Error: unsupported_media_type.
Result<> check_bytes_type(std::string_view content_type);
// Refuses compressed bodies: the server does not decompress. Error: unsupported_media_type.
Result<> check_content_encoding(std::string_view content_encoding);
bool is_bytes_type(std::string_view content_type);

// The form of response that the client prefers (RFC 9110, 12.5.1).
struct AnswerForm {
  // If both are wanted equally: MessagePack if it is named, and not after JSON. If neither is
  // wanted: JSON, because an unwanted response says more than none.
  WireFormat format = WireFormat::text;
  // It names plain bytes and prefers them to both.
  bool bytes = false;
};
AnswerForm answer_form(std::string_view accept);
std::string_view type_of(WireFormat format);

}  // namespace cairn
