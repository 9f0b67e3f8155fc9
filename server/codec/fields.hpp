#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/codec/document.hpp"

namespace cairn {

// A field that a reader has asked for, and what it takes: "1 to 256", "auto, host, cuda".
struct FieldNote {
  std::string path;
  std::string takes;
  std::optional<std::uint64_t> standard = {};  // of a number, where the reader has told it
};

// The first thing found wrong with a document; shared by the readers of its parts.
class DecodeErrors {
 public:
  DecodeErrors() = default;
  // Notes every field that is asked for, as if the document had all of its objects, so that a
  // reader tells by itself what it takes. Borrows `notes`.
  explicit DecodeErrors(std::vector<FieldNote>& notes) : notes_(&notes) {}

  void add(ErrorCode code, std::string detail);
  // A name that the schema lacks explains a missing one (it is often a misspelling): it is told
  // instead.
  void add_unknown(std::string detail);
  bool any() const { return first_.has_value(); }
  std::vector<FieldNote>* notes() { return notes_; }  // null: nobody wants to know
  Result<> take() {
    if (first_) return std::move(*first_);
    return {};
  }

 private:
  std::optional<Error> first_;
  std::vector<FieldNote>* notes_ = nullptr;
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

// Reads the members of one JSON object by name. What is missing, of a wrong type or out of range is
// noted with the field's path, and a neutral value answered, so that a decoder reads straight
// through and asks once at the end; finish() then refuses the members that nobody asked for.
class Fields {
 public:
  // Borrows both. `path` is the object's own place in the document, e.g. "tiers.device"; empty for
  // the document itself.
  Fields(const json& object, std::string path, DecodeErrors& errors);

  bool has(std::string_view name) const;

  std::uint64_t number(std::string_view name, NumberBounds bounds);
  std::optional<std::uint64_t> optional_number(std::string_view name, NumberBounds bounds);
  std::optional<std::int64_t> optional_signed(std::string_view name, SignedBounds bounds);
  std::optional<double> optional_share(std::string_view name);  // 0 to 1
  std::string string(std::string_view name);
  std::optional<std::string> optional_string(std::string_view name);
  std::optional<bool> optional_bool(std::string_view name);

  // One of a closed set of words; the answer is the word's index.
  std::size_t word(std::string_view name, std::span<const std::string_view> words);
  std::optional<std::size_t> optional_word(std::string_view name,
                                           std::span<const std::string_view> words);

  // The member itself, for a decoder of its own; null where it is missing.
  const json* object(std::string_view name);
  const json* optional_object(std::string_view name);
  const json* list(std::string_view name);
  const json* optional_list(std::string_view name);
  const json* optional_any(std::string_view name);

  // What stands for the number `name` where it is left out, for those who take notes.
  void note_standard(std::string_view name, std::uint64_t value);

  std::string path_of(std::string_view name) const;
  DecodeErrors& errors() { return errors_; }
  void finish();

 private:
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

// Reads a whole document with `read`, which takes its Fields. The first thing found wrong with it.
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

// An integer that was written as 286.0 or 2e3: JSON Schema, and languages with one kind of number,
// know no difference. Nothing for a fraction, and beyond what a double tells apart.
std::optional<std::int64_t> whole_of(double number);

// A number of a list or of a member; notes wrong_type or out_of_range under `path`.
std::uint64_t read_number(const json& value, const std::string& path, NumberBounds bounds,
                          DecodeErrors& errors);
std::optional<std::int64_t> read_signed(const json& value, const std::string& path,
                                        SignedBounds bounds, DecodeErrors& errors);

}  // namespace cairn
