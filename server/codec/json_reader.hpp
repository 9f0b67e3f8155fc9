#pragma once

// Every error is checked. With exceptions, a forgotten check would throw on a network thread.
#define SIMDJSON_EXCEPTIONS 0
#include <simdjson.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "base/result.hpp"
#include "server/codec/fields.hpp"

// Reads typed fields with simdjson's on-demand parser and returns the API's errors. Only
// hot_json.cpp includes this.
namespace cairn::hot_json {

namespace od = simdjson::ondemand;

// A value's place in the document; becomes text only for an error.
struct Where {
  std::string_view list = {};  // the list's name, for an element of a list
  std::size_t index = 0;       // the element's index
  std::string_view name = {};  // the field

  std::string text() const;
};

// A body being read. Borrows the parser and uses it alone until destroyed.
class Body {
 public:
  // REQUIRES: http::kBodyPadding readable bytes after `bytes`.
  Body(std::span<const std::byte> bytes, od::parser& parser);

  Result<od::object> root();
  // Error: malformed if something is left to read.
  Result<> finish();

  // Returns malformed, with the position.
  Error broken(simdjson::error_code error);

  Result<std::uint64_t> number(od::value value, const Where& where, NumberBounds bounds);
  Result<bool> flag(od::value value, const Where& where);
  // The text between the quotes; valid as long as the body.
  Result<std::string_view> string(od::value value, const Where& where);
  Result<od::array> list(od::value value, const Where& where);
  Result<od::object> object(od::value value, const Where& where);
  Error wrong_type(od::value value, const Where& where, std::string_view takes);

  // Calls `on_field(index of the name, value)` for each member. Refuses unknown and repeated names.
  // Returns one bit for each name that is present.
  template <std::size_t N, class OnField>
  Result<std::uint32_t> fields(od::object object, const std::array<std::string_view, N>& names,
                               Where where, OnField&& on_field) {
    std::uint32_t seen = 0;
    for (auto next : object) {
      od::field field;
      if (auto error = std::move(next).get(field)) return broken(error);
      std::size_t index = 0;
      while (index < N && !(field.key() == names[index])) ++index;
      if (index == N) {
        // The loop compared the raw names. An escaped name may still be one of them.
        std::string_view name;
        if (auto error = field.unescaped_key().get(name)) return broken(error);
        index =
            static_cast<std::size_t>(std::find(names.begin(), names.end(), name) - names.begin());
        if (index == N) return unknown_field({.name = name, .names = names}, where);
      }
      where.name = names[index];
      if ((seen >> index) & 1U) return repeated_field(where);
      seen |= 1U << index;
      CAIRN_TRY(on_field(index, field.value()));
    }
    return seen;
  }

 private:
  struct Unknown {
    std::string_view name;
    std::span<const std::string_view> names;
  };
  Error unknown_field(const Unknown& unknown, Where where);
  Error repeated_field(const Where& where);

  std::string_view text_;
  od::parser& parser_;
  od::document document_;
};

Error missing_field(const Where& where);

}  // namespace cairn::hot_json
