#pragma once

#include <cstddef>
#include <string_view>

#include "base/result.hpp"
#include "blockmgr/cache/cache.hpp"
#include "server/codec/fields.hpp"
#include "server/codec/query.hpp"

// Hints of a request about the next use of its blocks. Errors name `reuse`, `reuse.within_ms` or
// `session`.
namespace cairn {

// The longest name of a conversation: room for two UUIDs and some text.
inline constexpr std::size_t kMaxSessionBytes = 128;

// Reads a word, or an object as JSON text.
Result<ReuseHint> read_reuse(std::string_view text);
// Error: out_of_range unless it has 1 to kMaxSessionBytes bytes.
Result<> check_session(std::string_view session);
// Reads the members `reuse` and `session`, if present.
RequestHint read_hint(Fields& fields);
// Reads the parameters of these names, if present.
RequestHint read_hint(Query& query);

}  // namespace cairn
