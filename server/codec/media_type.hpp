#pragma once

#include <string_view>

#include "base/result.hpp"
#include "server/codec/document.hpp"

namespace cairn {

inline constexpr std::string_view kJsonType = "application/json";
inline constexpr std::string_view kMsgpackType = "application/msgpack";
inline constexpr std::string_view kBytesType = "application/octet-stream";

// The format of a structured body by its Content-Type; none given is JSON (as is what curl -d and
// urllib add by themselves), parameters do not matter. unsupported_media_type.
Result<WireFormat> body_format(std::string_view content_type);
// A body of plain bytes; no type given is right.
Result<> check_bytes_type(std::string_view content_type);
// Nothing here is unpacked: a compressed body would be stored as something it is not.
// unsupported_media_type.
Result<> check_content_encoding(std::string_view content_encoding);
bool is_bytes_type(std::string_view content_type);

// What the client wants to read: MessagePack where it asks for it and not for JSON before it.
WireFormat answer_format(std::string_view accept);
std::string_view type_of(WireFormat format);

}  // namespace cairn
