#include "server/codec/document.hpp"

// The same setting as in json_reader.hpp: a program has only one simdjson.
#define SIMDJSON_EXCEPTIONS 0
#include <simdjson.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

namespace cairn {
namespace {

// Builds the document from parser events, so that both formats have the same limits. The library's
// own builder has no limits, and of two members with the same name it keeps the last.
class DocumentBuilder final : public nlohmann::json_sax<json> {
 public:
  DocumentBuilder(WireFormat format, std::size_t max_values)
      : format_(format), max_values_(max_values) {}

  bool null() override { return add(json()); }
  bool boolean(bool value) override { return add(json(value)); }
  bool number_integer(number_integer_t value) override { return add(json(value)); }
  bool number_unsigned(number_unsigned_t value) override { return add(json(value)); }
  // Refuses values that JSON lacks: they would be returned or stored as something else.
  bool number_float(number_float_t value, const string_t&) override {
    if (!std::isfinite(value)) return refuse(place_text() + " is no finite number");
    return add(json(value));
  }
  bool string(string_t& value) override {
    if (!is_text(value)) return refuse(place_text() + " is a string that is not UTF-8");
    return add(json(std::move(value)));
  }
  bool binary(binary_t&) override {
    return refuse(place_text() + " is of a binary type, which JSON does not have");
  }

  bool start_object(std::size_t count) override { return open(json::object(), count); }
  bool start_array(std::size_t count) override { return open(json::array(), count); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }

  bool key(string_t& name) override {
    if (!is_text(name)) return refuse("a member's name is not UTF-8");
    auto [place, is_new] = open_.back()->get_ref<json::object_t&>().emplace(name, json());
    if (!is_new) return refuse("member '" + name.substr(0, kMaxQuoted) + "' is given twice");
    member_ = &place->second;
    return true;
  }

  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception& why) override {
    std::string text = why.what();
    // Removes the library's prefix: "[json.exception.parse_error.101] …".
    if (const auto end = text.find("] "); end != std::string::npos) text.erase(0, end + 2);
    return refuse("at byte " + std::to_string(position) + ": " + text.substr(0, kMaxDetail));
  }

  Result<json> take() && {
    if (error_) return std::move(*error_);
    // In place, because the library's values convert to anything, even to Error.
    return Result<json>(boost::system::in_place_value, std::move(root_));
  }

 private:
  static constexpr std::size_t kMaxQuoted = 64;
  static constexpr std::size_t kMaxDetail = 200;
  static constexpr auto kUnknownCount = static_cast<std::size_t>(-1);  // the library's value for it

  // The library itself checks JSON text.
  bool is_text(const std::string& text) const {
    return format_ == WireFormat::text || simdjson::validate_utf8(text.data(), text.size());
  }
  // The place of the value that was read last.
  std::string place_text() const {
    if (member_ == nullptr) return open_.empty() ? "the body" : "an element of a list";
    for (const auto& [name, value] : open_.back()->get_ref<const json::object_t&>()) {
      if (&value == member_) return "member '" + name.substr(0, kMaxQuoted) + "'";
    }
    return "a member";
  }

  json* place(json value) {
    if (member_ != nullptr) {
      *member_ = std::move(value);
      return std::exchange(member_, nullptr);
    }
    if (open_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    auto& list = open_.back()->get_ref<json::array_t&>();
    return &list.emplace_back(std::move(value));
  }

  bool add(json value) {
    if (!count(1)) return refuse_values();
    place(std::move(value));
    return true;
  }
  // The open containers lie on the path from the root to the last element. They never move, because
  // only the innermost list grows. MessagePack announces the number of values.
  bool open(json container, std::size_t announced) {
    if (!count(kContainerValues)) return refuse_values();
    if (announced != kUnknownCount && announced > max_values_ - values_) return refuse_values();
    if (open_.size() == kMaxNesting) {
      return refuse("nested deeper than " + std::to_string(kMaxNesting) + " levels");
    }
    open_.push_back(place(std::move(container)));
    return true;
  }
  bool close() {
    open_.pop_back();
    return true;
  }
  bool count(std::size_t values) {
    if (values > max_values_ - values_) return false;
    values_ += values;
    return true;
  }
  bool refuse_values() {
    error_ =
        Error{ErrorCode::out_of_range, "the body has more than " + std::to_string(max_values_) +
                                           " values, a list or an object counted as " +
                                           std::to_string(kContainerValues)};
    return false;
  }
  bool refuse(std::string why) {
    error_ = Error{ErrorCode::malformed, "the body does not parse: " + std::move(why)};
    return false;
  }

  const WireFormat format_;
  const std::size_t max_values_;
  std::size_t values_ = 0;
  json root_;
  json* member_ = nullptr;  // the member whose value comes next
  std::vector<json*> open_;
  std::optional<Error> error_;
};

}  // namespace

Result<json> parse_document(std::span<const std::byte> body, WireFormat format,
                            std::size_t max_values) {
  DocumentBuilder builder(format, max_values);
  const auto* first = reinterpret_cast<const char*>(body.data());
  if (format == WireFormat::text) {
    // The library ends the text at a NUL, whatever follows.
    const auto nul = std::find(body.begin(), body.end(), std::byte{0});
    if (nul != body.end()) {
      return Error{ErrorCode::malformed, "the body does not parse: at byte " +
                                             std::to_string(nul - body.begin()) + ": a NUL"};
    }
  }
  json::sax_parse(
      first, first + body.size(), &builder,
      format == WireFormat::text ? json::input_format_t::json : json::input_format_t::msgpack);
  return std::move(builder).take();
}

Result<json> parse_document(std::string_view text) {
  return parse_document(std::as_bytes(std::span(text)), WireFormat::text);
}

Result<std::string> json_text_of(std::span<const std::byte> packed, std::size_t max_values) {
  auto document = parse_document(packed, WireFormat::msgpack, max_values);
  if (!document) return std::move(document).error();
  return document->dump();
}

std::string write_document(const ordered_json& document, WireFormat format) {
  if (format == WireFormat::text) {
    return document.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
  }
  std::string out;
  ordered_json::to_msgpack(document, nlohmann::detail::output_adapter<char>(out));
  return out;
}

std::string write_text(std::string json_text, WireFormat format) {
  if (format == WireFormat::text) return json_text;
  return write_document(ordered_json::parse(json_text), format);
}

}  // namespace cairn
