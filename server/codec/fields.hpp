#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/codec/document.hpp"

namespace cairn {

// A field that a reader asked for, and the values it takes: "1 to 256", "auto, host, cuda".
struct FieldNote {
  std::string path;
  std::string takes;
  std::optional<std::uint64_t> standard = {};  // a number's default, if noted
};

// The first error of a document. The readers of its parts share it.
class DecodeErrors {
 public:
  DecodeErrors() = default;
  // Also notes every field that a reader asks for, as if all optional objects were present. So the
  // reader itself lists what it takes. Borrows `notes`.
  explicit DecodeErrors(std::vector<FieldNote>& notes) : notes_(&notes) {}
  // For documents that people write: sizes and durations may be "16GiB" and "10s" (base/quantity).
  static DecodeErrors with_units() {
    DecodeErrors errors;
    errors.takes_units_ = true;
    return errors;
  }

  void add(ErrorCode code, std::string detail);
  // Replaces the error of a missing field: an unknown name is often its misspelling.
  void add_unknown(std::string detail);
  bool any() const { return first_.has_value(); }
  std::vector<FieldNote>* notes() { return notes_; }  // null: nothing is noted
  bool takes_units() const { return takes_units_; }
  Result<> take() {
    if (first_) return std::move(*first_);
    return {};
  }

 private:
  std::optional<Error> first_;
  std::vector<FieldNote>* notes_ = nullptr;
  bool takes_units_ = false;
};

struct NumberBounds {
  std::uint64_t min = 0;
  std::uint64_t max = UINT64_MAX;
};
struct SignedBounds {
  std::int64_t min = 0;
  std::int64_t max = INT64_MAX;
};
inline constexpr NumberBounds kAnyU32{0, UINT32_MAX};

// Reads the members of one JSON object by name. A missing, mistyped or out-of-range member adds an
// error with the field's path and returns a neutral value. So a decoder reads all members and
// checks once at the end. finish() refuses members that were not asked for.
class Fields {
 public:
  // Borrows `object` and `errors`. `path` is the object's place in the document, e.g.
  // "tiers.device"; empty for the document itself.
  Fields(const json& object, std::string path, DecodeErrors& errors);

  bool has(std::string_view name) const;

  std::uint64_t number(std::string_view name, NumberBounds bounds);
  std::optional<std::uint64_t> optional_number(std::string_view name, NumberBounds bounds);
  std::optional<std::int64_t> optional_signed(std::string_view name, SignedBounds bounds);
  std::optional<double> optional_share(std::string_view name) {
    return optional_real(name, {.most = 1, .text = "a share of 0 to 1"});
  }
  std::optional<double> optional_amount(std::string_view name) {
    return optional_real(name, {.text = "a number of at least 0"});
  }
  std::string string(std::string_view name);
  std::optional<std::string> optional_string(std::string_view name);
  std::optional<bool> optional_bool(std::string_view name);

  // Returns the index in `words`; any other word is out_of_range.
  std::size_t word(std::string_view name, std::span<const std::string_view> words);
  std::optional<std::size_t> optional_word(std::string_view name,
                                           std::span<const std::string_view> words);

  // The member itself; null if missing or of a wrong type.
  const json* object(std::string_view name);
  const json* optional_object(std::string_view name);
  const json* list(std::string_view name);
  const json* optional_list(std::string_view name);
  const json* optional_any(std::string_view name);

  // Notes the default of the number `name`.
  void note_standard(std::string_view name, std::uint64_t value);

  std::string path_of(std::string_view name) const;
  DecodeErrors& errors() { return errors_; }
  void finish();

 private:
  struct RealBounds {  // from 0 on
    double most = std::numeric_limits<double>::infinity();
    std::string_view text;
  };
  std::optional<double> optional_real(std::string_view name, RealBounds bounds);
  void note(std::string_view name, std::string takes);
  const json* find(std::string_view name);
  const json* require(std::string_view name);
  const json* typed(const json* value, std::string_view name, bool right, const char* type);
  std::uint64_t number_of(const json& value, std::string_view name, NumberBounds bounds);

  const json& object_;
  std::string path_;
  DecodeErrors& errors_;
  std::vector<std::string_view> taken_;
};

// Reads a whole document with `read`, which takes its Fields. Returns its first error.
template <class Read>
auto read_whole(const json& document, Read&& read)
    -> Result<decltype(read(std::declval<Fields&>()))> {
  DecodeErrors errors;
  Fields fields(document, "", errors);
  auto body = read(fields);
  fields.finish();
  CAIRN_TRY(errors.take());
  return body;
}

// An integer written as 286.0 or 2e3, which JSON Schema and languages with one number type treat
// alike. nullopt for a fraction, or beyond the integers that a double represents exactly.
std::optional<std::int64_t> whole_of(double number);

// Reads a number. Adds wrong_type or out_of_range under `path`.
std::uint64_t read_number(const json& value, const std::string& path, NumberBounds bounds,
                          DecodeErrors& errors);
std::optional<std::int64_t> read_signed(const json& value, const std::string& path,
                                        SignedBounds bounds, DecodeErrors& errors);

}  // namespace cairn
