#pragma once

#include <cstddef>
#include <string_view>

#include "base/result.hpp"
#include "blockmgr/cache/cache.hpp"
#include "server/codec/fields.hpp"
#include "server/codec/query.hpp"

// What a request says of the next use of its blocks, whatever it is written in. Errors name
// `reuse`, `reuse.within_ms` or `session`.
namespace cairn {

// What a client calls a conversation: room for two UUIDs with words around them.
inline constexpr std::size_t kMaxSessionBytes = 128;

// A word, or an object as JSON text.
Result<ReuseHint> read_reuse(std::string_view text);
// out_of_range unless it has 1 to kMaxSessionBytes bytes.
Result<> check_session(std::string_view session);
// The members `reuse` and `session`, where they are there.
RequestHint read_hint(Fields& fields);
// The parameters of those names.
RequestHint read_hint(Query& query);

}  // namespace cairn
