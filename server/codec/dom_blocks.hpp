#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "blockmgr/cache/cache.hpp"
#include "server/codec/fields.hpp"

// The contract's nouns read from a document; what is wrong goes to the Fields' errors.
namespace cairn {

inline constexpr std::array<std::string_view, kNumTiers> kTierWords = {"device", "pinned", "disk"};

std::optional<Tier> read_optional_tier(Fields& fields, std::string_view name);
Tier read_tier(Fields& fields, std::string_view name);
// The members ttl_ms, priority, metadata and if_exists of whatever stores a block.
void read_write_options(Fields& fields, CommitBlock& out);
// The member wait_ms: how long the answer may wait.
std::uint32_t read_wait_ms(Fields& fields);
std::optional<BlockKey> read_key(const json& value, const std::string& path, DecodeErrors& errors);
// At most `max_keys` keys; more are out_of_range.
std::vector<BlockKey> read_keys(Fields& fields, std::string_view name, std::size_t max_keys);

// A list of keys and nulls, one a key: the parent of each.
std::vector<std::optional<BlockKey>> read_parents(const json& list, std::size_t count,
                                                  DecodeErrors& errors);
// Of keys that are one prefix, which goes on from `first`.
std::vector<std::optional<BlockKey>> chained_parents(const std::vector<BlockKey>& keys,
                                                     const std::optional<BlockKey>& first);

}  // namespace cairn
