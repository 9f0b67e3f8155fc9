#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "blockmgr/cache/cache.hpp"
#include "server/codec/kv_group_names.hpp"

// Responses of the hot routes as JSON text. Written by hand: hex, numbers and fixed words need no
// escaping.
namespace cairn {

struct MatchAnswer {
  std::span<const KeyView> keys;  // the requested keys, at least one per block
  const MatchResult& result;
  bool with_transfer = false;  // whether the response has the member `transfer`
  std::optional<TransferId> transfer = std::nullopt;
  // Further blocks that the shared tier has; nullopt leaves the member out.
  std::optional<std::uint64_t> remote_blocks = std::nullopt;
};
std::string match_text(const MatchAnswer& answer);
struct GroupMatchAnswer {
  std::span<const KeyView> keys;
  const GroupMatch& match;
  const KvGroupNames& groups;
  bool with_transfer = false;  // whether the response has the member `transfer`
  std::optional<TransferId> transfer = std::nullopt;
  std::optional<std::uint64_t> remote_keys = std::nullopt;  // beyond those matched
};
std::string group_match_text(const GroupMatchAnswer& answer);
std::string allocation_text(const Allocation& allocation, const KvGroupNames& groups);

// The same as little-endian bytes, for hot clients. Head: u32 number of blocks, u32 zero, the lease
// (16 bytes, which its text shows in hex; zeros if none), u64 its end. Then 16 bytes per block: u8
// tier, u8 KV group, 2 zeros, u32 slot, u64 generation. The `remote_blocks` come last, with tier 3
// and zeros for the rest.
std::string packed_blocks(const std::optional<LeaseId>& lease, std::int64_t expires_at_unix_ms,
                          std::span<const BlockHandle> blocks, std::uint64_t remote_blocks = 0);

struct CommitAnswer {
  std::span<const BlockKey> keys;
  std::span<const CommitStatus> statuses;  // one per key
  // The shards that a pending block has by now.
  std::function<std::vector<std::uint32_t>(KeyView)> shards_of;
};
std::string commit_text(const CommitAnswer& answer);
// For one stored key.
struct StoredAnswer {
  KeyView key;
  CommitStatus status = CommitStatus::committed;
  std::optional<BlockHandle> at = {};      // nullopt if the block is pending, or already gone
  std::vector<std::uint32_t> shards = {};  // that a pending block has by now
};
std::string stored_text(const StoredAnswer& answer, const KvGroupNames& groups);
std::string released_text(std::uint64_t released);
std::string renewed_text(const LeaseId& lease, std::int64_t expires_at_unix_ms);

std::string_view to_string(CommitStatus status);

}  // namespace cairn
