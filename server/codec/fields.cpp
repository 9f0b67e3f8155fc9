#include "server/codec/fields.hpp"

#include <algorithm>
#include <cmath>

#include "base/nearest.hpp"
#include "base/quantity.hpp"

namespace cairn {
namespace {

constexpr std::size_t kMaxQuoted = 64;

std::string in_quotes(std::string_view text) {
  std::string out = "'";
  out += text.substr(0, kMaxQuoted);
  if (text.size() > kMaxQuoted) out += "…";
  return out += "'";
}

std::string type_of(const json& value) {
  if (value.is_number_float()) return "a fraction";
  if (value.is_number()) return "a number";
  if (value.is_array()) return "a list";
  if (value.is_object()) return "an object";
  return value.is_string() ? "a string" : value.dump();  // null, true, false
}

std::string range_of(NumberBounds bounds) {
  if (bounds.max == UINT64_MAX) return std::to_string(bounds.min) + " and more";
  return std::to_string(bounds.min) + " to " + std::to_string(bounds.max);
}

std::string one_of(std::span<const std::string_view> words) {
  std::string choice;
  for (std::string_view word : words) choice.append(choice.empty() ? "" : ", ").append(word);
  return choice;
}

// An integer beyond 64 bits arrives as a float.
constexpr double kBeyondIntegers = 9.0e18;

}  // namespace

void DecodeErrors::add(ErrorCode code, std::string detail) {
  if (!first_) first_ = Error{code, std::move(detail)};
}

void DecodeErrors::add_unknown(std::string detail) {
  if (!first_ || first_->code == ErrorCode::missing_field) {
    first_ = Error{ErrorCode::unknown_field, std::move(detail)};
  }
}

std::optional<std::int64_t> whole_of(double number) {
  constexpr double kExact = 9007199254740992.0;  // 2^53
  if (!(std::abs(number) <= kExact) || std::trunc(number) != number) return std::nullopt;
  return static_cast<std::int64_t>(number);
}

std::optional<std::int64_t> read_signed(const json& value, const std::string& path,
                                        SignedBounds bounds, DecodeErrors& errors) {
  const auto no_integer = [&]() -> std::optional<std::int64_t> {
    errors.add(ErrorCode::wrong_type, path + " is " + type_of(value) + "; it takes an integer");
    return std::nullopt;
  };
  json whole = value;
  if (value.is_number_float()) {
    const auto number = value.get<double>();
    if (const auto read = whole_of(number)) {
      whole = *read;
    } else if (std::abs(number) <= kBeyondIntegers) {
      return no_integer();
    }
  } else if (!value.is_number_integer()) {
    return no_integer();
  }
  const bool fits = whole.is_number_integer() &&
                    !(whole.is_number_unsigned() && whole.get<std::uint64_t>() > INT64_MAX);
  if (fits && whole.get<std::int64_t>() >= bounds.min && whole.get<std::int64_t>() <= bounds.max) {
    return whole.get<std::int64_t>();
  }
  errors.add(ErrorCode::out_of_range, path + " is " + value.dump() + "; it takes " +
                                          std::to_string(bounds.min) + " to " +
                                          std::to_string(bounds.max));
  return std::nullopt;
}

std::uint64_t read_number(const json& value, const std::string& path, NumberBounds bounds,
                          DecodeErrors& errors) {
  const auto out_of_range = [&](const std::string& shown) {
    errors.add(ErrorCode::out_of_range, path + " is " + shown + "; it takes " +
                                            std::to_string(bounds.min) + " to " +
                                            std::to_string(bounds.max));
    return bounds.min;
  };
  if (value.is_number_unsigned()) {
    const auto number = value.get<std::uint64_t>();
    if (number >= bounds.min && number <= bounds.max) return number;
    return out_of_range(value.dump());
  }
  // An integer that is not unsigned is negative, unless C++ code built it from a signed number.
  if (value.is_number_integer()) {
    const auto number = value.get<std::int64_t>();
    if (number < 0) return out_of_range(value.dump());
    return read_number(json(static_cast<std::uint64_t>(number)), path, bounds, errors);
  }
  if (value.is_number_float()) {
    if (const auto whole = whole_of(value.get<double>())) {
      return read_number(json(*whole), path, bounds, errors);
    }
    if (std::abs(value.get<double>()) > kBeyondIntegers) return out_of_range(value.dump());
  }
  errors.add(ErrorCode::wrong_type, path + " is " + type_of(value) + "; it takes an integer");
  return bounds.min;
}

Fields::Fields(const json& object, std::string path, DecodeErrors& errors)
    : object_(object), path_(std::move(path)), errors_(errors) {
  if (!object_.is_object()) {
    errors_.add(ErrorCode::wrong_type, (path_.empty() ? std::string("the body") : path_) + " is " +
                                           type_of(object_) + "; it takes an object");
  }
}

std::string Fields::path_of(std::string_view name) const {
  if (path_.empty()) return std::string(name);
  return std::string(path_).append(".").append(name);
}

// Keeps the first note of a field: a word is also read as a string, and a member may be read twice.
void Fields::note(std::string_view name, std::string takes) {
  std::vector<FieldNote>* const notes = errors_.notes();
  if (notes == nullptr) return;
  std::string path = path_of(name);
  if (std::ranges::find(*notes, path, &FieldNote::path) != notes->end()) return;
  notes->push_back({.path = std::move(path), .takes = std::move(takes)});
}

void Fields::note_standard(std::string_view name, std::uint64_t value) {
  if (errors_.notes() == nullptr) return;
  const auto noted = std::ranges::find(*errors_.notes(), path_of(name), &FieldNote::path);
  if (noted != errors_.notes()->end()) noted->standard = value;
}

bool Fields::has(std::string_view name) const {
  return object_.is_object() && object_.find(name) != object_.end();
}

const json* Fields::find(std::string_view name) {
  taken_.push_back(name);
  if (!object_.is_object()) return nullptr;
  const auto found = object_.find(name);
  return found == object_.end() ? nullptr : &*found;
}

const json* Fields::require(std::string_view name) {
  const json* value = find(name);
  if (value == nullptr) errors_.add(ErrorCode::missing_field, path_of(name) + " is missing");
  return value;
}

const json* Fields::typed(const json* value, std::string_view name, bool right, const char* type) {
  if (value == nullptr || right) return value;
  errors_.add(ErrorCode::wrong_type,
              path_of(name) + " is " + type_of(*value) + "; it takes " + type);
  return nullptr;
}

std::uint64_t Fields::number(std::string_view name, NumberBounds bounds) {
  const json* value = require(name);
  return value == nullptr ? bounds.min : number_of(*value, name, bounds);
}

std::uint64_t Fields::number_of(const json& value, std::string_view name, NumberBounds bounds) {
  const std::string_view example = errors_.takes_units() ? quantity_example(name) : "";
  if (!value.is_string() || example.empty()) {
    return read_number(value, path_of(name), bounds, errors_);
  }
  const auto text = value.get<std::string>();
  if (const auto number = parse_quantity(name, text)) {
    return read_number(json(*number), path_of(name), bounds, errors_);
  }
  errors_.add(ErrorCode::wrong_type, path_of(name) + " is " + in_quotes(text) +
                                         "; it takes a number, or one with a unit, as in " +
                                         std::string(example));
  return bounds.min;
}

std::optional<std::uint64_t> Fields::optional_number(std::string_view name, NumberBounds bounds) {
  note(name, range_of(bounds));
  const json* value = find(name);
  if (value == nullptr) return std::nullopt;
  return number_of(*value, name, bounds);
}

std::optional<std::int64_t> Fields::optional_signed(std::string_view name, SignedBounds bounds) {
  note(name, std::to_string(bounds.min) + " to " + std::to_string(bounds.max));
  const json* value = find(name);
  if (value == nullptr) return std::nullopt;
  return read_signed(*value, path_of(name), bounds, errors_);
}

std::optional<double> Fields::optional_real(std::string_view name, RealBounds bounds) {
  note(name, std::string(bounds.text));
  const json* value = find(name);
  if (typed(value, name, value != nullptr && value->is_number(), "a number") == nullptr) {
    return std::nullopt;
  }
  const auto number = value->get<double>();
  if (number >= 0.0 && number <= bounds.most) return number;
  errors_.add(ErrorCode::out_of_range,
              path_of(name) + " is " + value->dump() + "; it takes " + std::string(bounds.text));
  return std::nullopt;
}

std::string Fields::string(std::string_view name) {
  const json* value = require(name);
  value = typed(value, name, value != nullptr && value->is_string(), "a string");
  return value == nullptr ? std::string() : value->get<std::string>();
}

std::optional<std::string> Fields::optional_string(std::string_view name) {
  note(name, "a string");
  const json* value = find(name);
  value = typed(value, name, value != nullptr && value->is_string(), "a string");
  if (value == nullptr) return std::nullopt;
  return value->get<std::string>();
}

std::optional<bool> Fields::optional_bool(std::string_view name) {
  note(name, "true or false");
  const json* value = find(name);
  value = typed(value, name, value != nullptr && value->is_boolean(), "true or false");
  if (value == nullptr) return std::nullopt;
  return value->get<bool>();
}

std::size_t Fields::word(std::string_view name, std::span<const std::string_view> words) {
  note(name, one_of(words));
  if (!has(name)) {
    require(name);
    return 0;
  }
  return optional_word(name, words).value_or(0);
}

std::optional<std::size_t> Fields::optional_word(std::string_view name,
                                                 std::span<const std::string_view> words) {
  note(name, one_of(words));
  const auto text = optional_string(name);
  if (!text) return std::nullopt;
  const auto found = std::find(words.begin(), words.end(), *text);
  if (found != words.end()) return static_cast<std::size_t>(found - words.begin());
  errors_.add(ErrorCode::out_of_range,
              path_of(name) + " is " + in_quotes(*text) + "; it takes one of " + one_of(words));
  return std::nullopt;
}

const json* Fields::object(std::string_view name) {
  const json* value = require(name);
  return typed(value, name, value != nullptr && value->is_object(), "an object");
}

const json* Fields::optional_object(std::string_view name) {
  static const json kEmpty = json::object();
  const json* value = find(name);
  if (value == nullptr && errors_.notes() != nullptr) return &kEmpty;
  return typed(value, name, value != nullptr && value->is_object(), "an object");
}

const json* Fields::list(std::string_view name) {
  const json* value = require(name);
  return typed(value, name, value != nullptr && value->is_array(), "a list");
}

const json* Fields::optional_list(std::string_view name) {
  note(name, "a list");
  const json* value = find(name);
  return typed(value, name, value != nullptr && value->is_array(), "a list");
}

const json* Fields::optional_any(std::string_view name) { return find(name); }

void Fields::finish() {
  if (!object_.is_object()) return;
  for (const auto& [name, value] : object_.items()) {
    if (std::find(taken_.begin(), taken_.end(), name) != taken_.end()) continue;
    return errors_.add_unknown(path_of(name.substr(0, kMaxQuoted)) + " is no field of this object" +
                               did_you_mean(name, taken_));
  }
}

}  // namespace cairn
