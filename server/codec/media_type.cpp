#include "server/codec/media_type.hpp"

#include <algorithm>

namespace cairn {
namespace {

constexpr std::size_t kMaxQuoted = 64;

bool same(std::string_view a, std::string_view b) {
  const auto lower = [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  };
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [&](char x, char y) { return lower(x) == lower(y); });
}

// The type without parameters and spaces.
std::string_view bare(std::string_view type) {
  type = type.substr(0, type.find(';'));
  while (!type.empty() && type.back() == ' ') type.remove_suffix(1);
  while (!type.empty() && type.front() == ' ') type.remove_prefix(1);
  return type;
}

// What curl -d and Python's urllib say where their user has said nothing: it means no more than no
// type at all.
bool is_unsaid(std::string_view content_type) {
  return content_type.empty() || same(bare(content_type), "application/x-www-form-urlencoded");
}

Error unsupported(std::string_view type, std::string_view takes) {
  std::string detail = "Content-Type is '";
  detail.append(type.substr(0, kMaxQuoted)).append("'; this route takes ").append(takes);
  return {ErrorCode::unsupported_media_type, std::move(detail)};
}

}  // namespace

Result<WireFormat> body_format(std::string_view content_type) {
  if (content_type == kJsonType || is_unsaid(content_type)) return WireFormat::text;
  const std::string_view type = bare(content_type);
  if (same(type, kJsonType)) return WireFormat::text;
  if (same(type, kMsgpackType) || same(type, "application/x-msgpack") ||
      same(type, "application/vnd.msgpack")) {
    return WireFormat::msgpack;
  }
  return unsupported(content_type, "application/json or application/msgpack");
}

bool is_bytes_type(std::string_view content_type) {
  return content_type == kBytesType || same(bare(content_type), kBytesType);
}

Result<> check_bytes_type(std::string_view content_type) {
  if (is_unsaid(content_type) || is_bytes_type(content_type)) return {};
  return unsupported(content_type, kBytesType);
}

Result<> check_content_encoding(std::string_view content_encoding) {
  if (content_encoding.empty() || same(bare(content_encoding), "identity")) return {};
  std::string detail = "Content-Encoding is '";
  detail.append(content_encoding.substr(0, kMaxQuoted)).append("'; bodies are taken as they are");
  return Error{ErrorCode::unsupported_media_type, std::move(detail)};
}

WireFormat answer_format(std::string_view accept) {
  const auto msgpack = accept.find("msgpack");
  if (msgpack == std::string_view::npos) return WireFormat::text;
  return accept.find(kJsonType) < msgpack ? WireFormat::text : WireFormat::msgpack;
}

std::string_view type_of(WireFormat format) {
  return format == WireFormat::text ? kJsonType : kMsgpackType;
}

}  // namespace cairn
