#pragma once

#include <array>
#include <cstdint>
#include <forward_list>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/result.hpp"
#include "blockmgr/cache/cache.hpp"
#include "server/codec/fields.hpp"

namespace cairn {

// Percent-decodes. nullopt if a '%' is not followed by two hex digits.
std::optional<std::string> percent_decoded(std::string_view text);

// The parameters after a URL's '?', read by name like the fields of a body. It keeps the first
// error. finish() returns it, and refuses parameters that were not asked for.
class Query {
 public:
  // Borrows `text`.
  explicit Query(std::string_view text);

  std::optional<std::string_view> text(std::string_view name);
  std::optional<std::uint64_t> number(std::string_view name, NumberBounds bounds);
  std::optional<bool> flag(std::string_view name);
  std::optional<Tier> tier(std::string_view name);
  // Returns the index in `words`; any other word is out_of_range.
  std::optional<std::size_t> word(std::string_view name, std::span<const std::string_view> words);
  // A JSON object, as text on one line.
  std::optional<std::string> object(std::string_view name);
  std::optional<BlockKey> key(std::string_view name);
  // The number of entries per page of a list.
  std::uint32_t limit();
  // layer and outer; missing_field if only one is given.
  std::optional<PieceSelector> piece();
  // The parameters shard and shards, which go together.
  std::optional<ShardSelector> shard();
  // A piece or a shard; both are an error.
  BlockPart part();
  void require(std::string_view name, bool given);
  void refuse(ErrorCode code, std::string detail) { errors_.add(code, std::move(detail)); }

  Result<> finish();

 private:
  // No route takes more. Lookups are linear.
  static constexpr std::size_t kMaxParameters = 16;
  struct Parameter {
    std::string_view name;
    std::string_view value;
    bool taken = false;
  };

  void add(std::string_view pair);
  std::string_view decode(std::string_view text);

  std::array<Parameter, kMaxParameters> parameters_;
  std::size_t count_ = 0;
  std::forward_list<std::string> decoded_;  // text that was percent-encoded or has a '+'
  DecodeErrors errors_;
};

}  // namespace cairn
