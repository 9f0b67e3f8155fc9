#pragma once

#include <optional>
#include <span>
#include <string>

#include "blockmgr/cache/cache.hpp"

// The hot routes' answers as JSON text. Written by hand: only hex, numbers and fixed words, so
// nothing needs escaping.
namespace cairn {

struct MatchAnswer {
  std::span<const KeyView> keys;  // those asked for, at least as many as there are blocks
  const MatchResult& result;
  bool with_transfer = false;  // whether the answer speaks of a movement at all
  std::optional<TransferId> transfer = std::nullopt;
  // Blocks behind those that the shared tier has; nothing: it is not spoken of.
  std::optional<std::uint64_t> shared_blocks = std::nullopt;
};
std::string match_text(const MatchAnswer& answer);
std::string allocation_text(const Allocation& allocation);

// The same for hot clients, as little-endian bytes: u32 blocks, u32 zero, the lease (16 bytes,
// those that its text is the hex of; zeros: none), u64 its end; then 16 bytes a block: u8 tier, 3
// zeros, u32 slot, u64 generation. Behind them come as many blocks of the tier 3, with zeros for
// the rest, as the shared tier has.
std::string packed_blocks(const std::optional<LeaseId>& lease, std::int64_t expires_at_unix_ms,
                          std::span<const BlockHandle> blocks, std::uint64_t shared_blocks = 0);

struct CommitAnswer {
  std::span<const BlockKey> keys;
  std::span<const CommitStatus> statuses;  // as many
};
std::string commit_text(const CommitAnswer& answer);
// Of one key that was stored. `at`: nothing where it is gone again.
std::string stored_text(KeyView key, CommitStatus status, const std::optional<BlockHandle>& at);
std::string released_text(std::uint64_t released);
std::string renewed_text(const LeaseId& lease, std::int64_t expires_at_unix_ms);

std::string_view to_string(CommitStatus status);

}  // namespace cairn
