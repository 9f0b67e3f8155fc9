#pragma once

#include <cstddef>
#include <span>

#include "base/result.hpp"
#include "server/codec/kv_group_names.hpp"
#include "server/codec/requests.hpp"

// Reads the hot requests from JSON without building a document. A match of 64 keys takes a few
// microseconds and allocates nothing if `out` is reused. The body must be followed by
// http::kBodyPadding readable bytes.
// Errors: malformed, unknown_field, missing_field, wrong_type, out_of_range, each with the field's
// name.
namespace cairn::hot_json {

Result<> read_match(std::span<const std::byte> body, const MatchLimits& limits, MatchBody& out);
Result<> read_contains(std::span<const std::byte> body, std::size_t max_keys, ContainsBody& out);
Result<AllocateBody> read_allocate(std::span<const std::byte> body, const KvGroupNames& groups);
// How many blocks a body may name, and in which KV groups. Error: unknown_kv_group for another.
struct BlockBounds {
  std::size_t max_blocks = 0;
  const KvGroupNames& groups;
};
Result<CommitBody> read_commit(std::span<const std::byte> body, const BlockBounds& bounds);
Result<ReleaseBody> read_release(std::span<const std::byte> body, const BlockBounds& bounds);
Result<RenewBody> read_renew(std::span<const std::byte> body);

}  // namespace cairn::hot_json
