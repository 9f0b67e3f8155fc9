#include "server/codec/json_reader.hpp"

#include <cstring>

#include "base/nearest.hpp"
#include "server/http/message.hpp"

namespace cairn::hot_json {
namespace {

static_assert(http::kBodyPadding >= simdjson::SIMDJSON_PADDING,
              "simdjson would read past the end of a body");

constexpr std::size_t kMaxQuoted = 64;

std::string_view without_space_behind(std::string_view token) {
  const auto is_space = [](char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; };
  while (!token.empty() && is_space(token.back())) token.remove_suffix(1);
  return token;
}

enum class Token { integer, fraction, string, word, list, object, broken };

Token token_kind(std::string_view token) {
  if (token.empty()) return Token::broken;
  switch (token.front()) {
    case '"':
      return Token::string;
    case '[':
      return Token::list;
    case '{':
      return Token::object;
    default:
      break;
  }
  if (token == "true" || token == "false" || token == "null") return Token::word;
  // Both readers must reject the same numbers, so parse_document() decides. Only errors come here.
  if (token.find_first_not_of("+-.0123456789eE") != std::string_view::npos ||
      !parse_document(token)) {
    return Token::broken;
  }
  const bool whole = token.find_first_of(".eE+", 1) == std::string_view::npos &&
                     token.find('-', 1) == std::string_view::npos;
  return whole ? Token::integer : Token::fraction;
}

std::string_view described(Token kind) {
  switch (kind) {
    case Token::integer:
      return "a number";
    case Token::fraction:
      return "a fraction";
    case Token::string:
      return "a string";
    case Token::word:
      return "";
    case Token::list:
      return "a list";
    case Token::object:
      return "an object";
    case Token::broken:
      return "no JSON";
  }
  return "";
}

}  // namespace

std::string Where::text() const {
  std::string out(list);
  if (!list.empty()) out.append("[").append(std::to_string(index)).append("]");
  if (!name.empty()) out.append(out.empty() ? "" : ".").append(name);
  return out.empty() ? "the body" : out;
}

Error missing_field(const Where& where) {
  return {ErrorCode::missing_field, where.text() + " is missing"};
}

Body::Body(std::span<const std::byte> bytes, od::parser& parser)
    : text_(reinterpret_cast<const char*>(bytes.data()), bytes.size()), parser_(parser) {}

Error Body::broken(simdjson::error_code error) {
  std::string detail = "the body does not parse";
  const char* at = nullptr;
  if (document_.current_location().get(at) == simdjson::SUCCESS && at >= text_.data() &&
      at <= text_.data() + text_.size()) {
    detail.append(": at byte ").append(std::to_string(at - text_.data()));
  }
  return {ErrorCode::malformed, detail.append(": ").append(simdjson::error_message(error))};
}

Result<od::object> Body::root() {
  const simdjson::padded_string_view padded(text_.data(), text_.size(),
                                            text_.size() + http::kBodyPadding);
  if (auto error = parser_.iterate(padded).get(document_)) {
    // No document is open, so there is no position.
    return Error{ErrorCode::malformed,
                 std::string("the body does not parse: ").append(simdjson::error_message(error))};
  }
  od::object object;
  const auto error = document_.get_object().get(object);
  if (error == simdjson::INCORRECT_TYPE) {
    std::string_view token;
    if (const auto lost = document_.raw_json_token().get(token)) return broken(lost);
    const Token kind = token_kind(without_space_behind(token));
    if (kind == Token::broken) return broken(simdjson::TAPE_ERROR);
    std::string detail = "the body is ";
    detail.append(kind == Token::word ? without_space_behind(token) : described(kind));
    return Error{ErrorCode::wrong_type, detail.append("; it takes an object")};
  }
  if (error) return broken(error);
  return object;
}

Result<> Body::finish() {
  // After the last token there is no location.
  if (document_.current_location().error() == simdjson::OUT_OF_BOUNDS) return {};
  return broken(simdjson::TRAILING_CONTENT);
}

Error Body::wrong_type(od::value value, const Where& where, std::string_view takes) {
  const std::string_view token = without_space_behind(value.raw_json_token());
  const Token kind = token_kind(token);
  if (kind == Token::broken) return broken(simdjson::TAPE_ERROR);
  std::string detail = where.text() + " is ";
  detail.append(kind == Token::word ? token : described(kind)).append("; it takes ").append(takes);
  return {ErrorCode::wrong_type, std::move(detail)};
}

Result<std::uint64_t> Body::number(od::value value, const Where& where, NumberBounds bounds) {
  std::uint64_t number = 0;
  bool read = value.get_uint64().get(number) == simdjson::SUCCESS;
  std::optional<std::int64_t> whole;
  if (double written = 0; !read && value.get_double().get(written) == simdjson::SUCCESS) {
    whole = whole_of(written);
    read = whole && *whole >= 0;
    if (read) number = static_cast<std::uint64_t>(*whole);
  }
  if (read && number >= bounds.min && number <= bounds.max) return number;
  std::string shown = std::to_string(number);
  if (!read) {
    const std::string_view token = without_space_behind(value.raw_json_token());
    // Here an integer is negative or beyond 64 bits.
    if (!whole && token_kind(token) != Token::integer) {
      return wrong_type(value, where, "an integer");
    }
    shown = token.substr(0, kMaxQuoted);
  }
  return Error{ErrorCode::out_of_range, where.text() + " is " + shown + "; it takes " +
                                            std::to_string(bounds.min) + " to " +
                                            std::to_string(bounds.max)};
}

Result<std::string_view> Body::string(od::value value, const Where& where) {
  std::string_view token = value.raw_json_token();
  if (token.empty() || token.front() != '"') return wrong_type(value, where, "a string");
  // Unescaping copies byte by byte, and escapes are rare here. The token extends to the next token,
  // so only whitespace follows its closing quote.
  token = without_space_behind(token);
  if (token.size() >= 2 && token.back() == '"') {
    const std::string_view plain = token.substr(1, token.size() - 2);
    if (std::memchr(plain.data(), '\\', plain.size()) == nullptr) {
      // The string must be consumed. Otherwise the parser skips it as a field's name if a colon
      // follows.
      if (auto error = value.get_raw_json_string().error()) return broken(error);
      return plain;
    }
  }
  std::string_view text;
  if (auto error = value.get_string().get(text)) return broken(error);
  return text;
}

Result<bool> Body::flag(od::value value, const Where& where) {
  bool flag = false;
  const auto error = value.get_bool().get(flag);
  if (error == simdjson::INCORRECT_TYPE) return wrong_type(value, where, "true or false");
  if (error) return broken(error);
  return flag;
}

Result<od::array> Body::list(od::value value, const Where& where) {
  od::array array;
  const auto error = value.get_array().get(array);
  if (error == simdjson::INCORRECT_TYPE) return wrong_type(value, where, "a list");
  if (error) return broken(error);
  return array;
}

Result<od::object> Body::object(od::value value, const Where& where) {
  od::object object;
  const auto error = value.get_object().get(object);
  if (error == simdjson::INCORRECT_TYPE) return wrong_type(value, where, "an object");
  if (error) return broken(error);
  return object;
}

Error Body::unknown_field(const Unknown& unknown, Where where) {
  where.name = unknown.name.substr(0, kMaxQuoted);
  return {ErrorCode::unknown_field,
          where.text() + " is no field of this object" + did_you_mean(unknown.name, unknown.names)};
}

Error Body::repeated_field(const Where& where) {
  std::string detail = "the body does not parse: member '";
  detail.append(where.text()).append("' is given twice");
  return {ErrorCode::malformed, std::move(detail)};
}

}  // namespace cairn::hot_json
