#pragma once

#include <string_view>

#include "base/result.hpp"
#include "server/codec/document.hpp"

namespace cairn {

inline constexpr std::string_view kJsonType = "application/json";
inline constexpr std::string_view kMsgpackType = "application/msgpack";
inline constexpr std::string_view kBytesType = "application/octet-stream";

// The format of a structured body by its Content-Type, whose parameters do not matter. A type is
// asked for, and no form's and no plain text's is taken: a browser sends those for the page of
// anybody, without asking this server first. unsupported_media_type.
Result<WireFormat> body_format(std::string_view content_type);
// A body of plain bytes. unsupported_media_type.
Result<> check_bytes_type(std::string_view content_type);
// Nothing here is unpacked: a compressed body would be stored as something it is not.
// unsupported_media_type.
Result<> check_content_encoding(std::string_view content_encoding);
bool is_bytes_type(std::string_view content_type);

// What the client would rather read, by RFC 9110, 12.5.1.
struct AnswerForm {
  // Of two that it wants as much, MessagePack where that is named and JSON not before it. JSON
  // where it wants neither: an answer that it may not read tells it more than none.
  WireFormat format = WireFormat::text;
  // It would rather read plain bytes than either: it has to name them.
  bool bytes = false;
};
AnswerForm answer_form(std::string_view accept);
std::string_view type_of(WireFormat format);

}  // namespace cairn
