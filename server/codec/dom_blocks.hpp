#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "blockmgr/cache/cache.hpp"
#include "server/codec/fields.hpp"

// Readers for parts that many bodies share. Errors go to the DecodeErrors of `fields`.
namespace cairn {

inline constexpr std::array<std::string_view, kNumTiers> kTierWords = {"device", "pinned", "disk"};

std::optional<Tier> read_optional_tier(Fields& fields, std::string_view name);
Tier read_tier(Fields& fields, std::string_view name);
// Reads ttl_ms, priority, metadata and if_exists, the options of every request that stores a block.
void read_write_options(Fields& fields, CommitBlock& out);
// Reads wait_ms: how long the response may wait.
std::uint32_t read_wait_ms(Fields& fields);
std::optional<BlockKey> read_key(const json& value, const std::string& path, DecodeErrors& errors);
// Reads at most `max_keys` keys; more are out_of_range.
std::vector<BlockKey> read_keys(Fields& fields, std::string_view name, std::size_t max_keys);

// Reads the parent of each key, or null. wrong_length unless the list has `count` elements.
std::vector<std::optional<BlockKey>> read_parents(const json& list, std::size_t count,
                                                  DecodeErrors& errors);
// The parents of keys that form one prefix. `first` is the parent of the first key.
std::vector<std::optional<BlockKey>> chained_parents(const std::vector<BlockKey>& keys,
                                                     const std::optional<BlockKey>& first);

}  // namespace cairn
