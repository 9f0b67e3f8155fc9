#include "server/codec/media_type.hpp"

#include <algorithm>

#include "server/codec/header_text.hpp"

namespace cairn {
namespace {

constexpr std::size_t kMaxQuotedType = 64;

bool same(std::string_view a, std::string_view b) {
  const auto lower = [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  };
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [&](char x, char y) { return lower(x) == lower(y); });
}

// The type without parameters and surrounding spaces.
std::string_view bare(std::string_view type) { return trimmed(type.substr(0, type.find(';'))); }

bool is_msgpack(std::string_view type) {
  return same(type, kMsgpackType) || same(type, "application/x-msgpack") ||
         same(type, "application/vnd.msgpack");
}

// Removes and returns the part before the next separator. Separators in quotes do not count.
std::string_view take_part(std::string_view& list, char separator) {
  bool quoted = false;
  std::size_t end = 0;
  for (; end < list.size() && (quoted || list[end] != separator); ++end) {
    if (list[end] == '"') quoted = !quoted;
    if (list[end] == '\\' && quoted) ++end;
  }
  end = std::min(end, list.size());
  const std::string_view part = list.substr(0, end);
  list.remove_prefix(std::min(end + 1, list.size()));
  return trimmed(part);
}

// The weight in thousandths; 1000 if missing or malformed (RFC 9110, 12.4.2).
int weight_of(std::string_view parameters) {
  constexpr int kFull = 1000;
  while (!parameters.empty()) {
    const std::string_view one = take_part(parameters, ';');
    if (one.size() < 3 || !same(one.substr(0, 2), "q=")) continue;
    std::string_view digits = one.substr(2);
    if (digits.size() > 5 || (digits.size() > 1 && digits[1] != '.')) return kFull;
    int weight = digits[0] - '0';
    if (weight != 0 && weight != 1) return kFull;
    digits.remove_prefix(std::min<std::size_t>(digits.size(), 2));
    for (std::size_t i = 0; i < 3; ++i) {
      const char digit = i < digits.size() ? digits[i] : '0';
      if (digit < '0' || digit > '9') return kFull;
      weight = 10 * weight + (digit - '0');
    }
    return std::min(weight, kFull);
  }
  return kFull;
}

// How much the client wants one type, by the range that matches it most closely.
struct Wish {
  int weight = 0;
  int closeness = 0;  // 0: no range matches; 3: named
  std::size_t rank = 0;
  void take(int closer, int said, std::size_t at) {
    if (closer > closeness) *this = {.weight = said, .closeness = closer, .rank = at};
  }
  // With equal weights, a named type goes first; of two, the one named first.
  bool goes_before(const Wish& other) const {
    if (weight != other.weight) return weight > other.weight;
    return closeness == 3 && (other.closeness < 3 || rank < other.rank);
  }
};

struct Wishes {
  Wish plain;
  Wish msgpack;
  Wish bytes;
};

Wishes wishes_of(std::string_view accept) {
  Wishes wishes;
  for (std::size_t rank = 0; !accept.empty(); ++rank) {
    std::string_view range = take_part(accept, ',');
    const std::string_view type = take_part(range, ';');
    const int weight = weight_of(range);
    if (same(type, kJsonType)) {
      wishes.plain.take(3, weight, rank);
    } else if (is_msgpack(type)) {
      wishes.msgpack.take(3, weight, rank);
    } else if (same(type, kBytesType)) {
      wishes.bytes.take(3, weight, rank);
    } else if (same(type, "*/*") || same(type, "application/*")) {
      const int closeness = type.front() == '*' ? 1 : 2;
      wishes.plain.take(closeness, weight, rank);
      wishes.msgpack.take(closeness, weight, rank);
    }
  }
  return wishes;
}

Error unsupported(std::string_view type, std::string_view takes) {
  std::string detail = "Content-Type is ";
  if (type.empty()) {
    detail += "missing";
  } else {
    detail.append("'").append(type.substr(0, kMaxQuotedType)).append("'");
  }
  detail.append("; this route takes ").append(takes);
  return {ErrorCode::unsupported_media_type, std::move(detail)};
}

}  // namespace

Result<WireFormat> body_format(std::string_view content_type) {
  if (content_type == kJsonType) return WireFormat::text;
  const std::string_view type = bare(content_type);
  if (same(type, kJsonType)) return WireFormat::text;
  if (is_msgpack(type)) return WireFormat::msgpack;
  return unsupported(content_type, "application/json or application/msgpack");
}

bool is_bytes_type(std::string_view content_type) {
  return content_type == kBytesType || same(bare(content_type), kBytesType);
}

Result<> check_bytes_type(std::string_view content_type) {
  if (is_bytes_type(content_type)) return {};
  return unsupported(content_type, kBytesType);
}

Result<> check_content_encoding(std::string_view content_encoding) {
  if (content_encoding.empty() || same(bare(content_encoding), "identity")) return {};
  std::string detail = "Content-Encoding is '";
  detail.append(content_encoding.substr(0, kMaxQuotedType))
      .append("'; bodies are taken as they are");
  return Error{ErrorCode::unsupported_media_type, std::move(detail)};
}

AnswerForm answer_form(std::string_view accept) {
  // Nearly all clients send one of these. Parsing a list takes as long as reading a match's keys.
  if (accept.empty() || accept == "*/*" || accept == kJsonType) return {};
  if (accept == kBytesType) return {.bytes = true};
  const Wishes wishes = wishes_of(accept);
  // JSON also if neither is wanted.
  const bool msgpack = wishes.msgpack.weight > 0 && wishes.msgpack.goes_before(wishes.plain);
  return {.format = msgpack ? WireFormat::msgpack : WireFormat::text,
          .bytes = wishes.bytes.weight > 0 && wishes.bytes.goes_before(wishes.plain) &&
                   wishes.bytes.goes_before(wishes.msgpack)};
}

std::string_view type_of(WireFormat format) {
  return format == WireFormat::text ? kJsonType : kMsgpackType;
}

}  // namespace cairn
