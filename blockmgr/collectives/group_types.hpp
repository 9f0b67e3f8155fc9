#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "blockmgr/cache/cache.hpp"
#include "transport/collective/communicator.hpp"

namespace cairn {

enum class GroupState : std::uint8_t {
  joining,  // some ranks are missing
  ready,
  failed,  // permanently: leave it, and make it again with a new unique id
};
inline constexpr std::size_t kNumGroupStates = 3;
std::string_view to_string(GroupState state);

struct GroupJoin {
  std::string name;
  RankPlace place;
  int device_id = 0;
  std::string unique_id = {};  // empty for rank 0, which gets one
};

struct GroupInfo {
  std::string name;
  RankPlace place;
  int device_id = 0;
  std::string unique_id;
  std::string_view collective;  // "local" or "nccl"
  GroupState state = GroupState::joining;
  std::optional<Error> error = {};      // why it has failed
  std::uint64_t queued_operations = 0;  // including the current one
};

// Operations of the ranks with the blocks of a cache, or with numbers.
enum class CollectiveKind : std::uint8_t { send, recv, broadcast, all_gather, agree, all_reduce };
inline constexpr std::size_t kNumCollectiveKinds = 6;
std::string_view to_string(CollectiveKind kind);

struct CollectiveRequest {
  CollectiveKind kind = CollectiveKind::broadcast;
  std::shared_ptr<Cache> cache = {};  // null for all_reduce
  std::vector<BlockKey> keys = {};
  std::uint32_t other = 0;        // the peer of send and recv, the root of broadcast
  std::optional<Tier> tier = {};  // where received blocks go; nullopt: the cache's highest
  // all_reduce: this rank's numbers. All ranks give equally many, and those at one index are
  // reduced to one.
  Numbers values = Numbers();
  Reduction reduction = Reduction::sum;
  // Quota for its keys until it ends; null: none.
  std::shared_ptr<LeaseQuotaShare> pins = {};
};

// The largest absolute value of an integer in an all_reduce: every JSON reader keeps it exact. The
// sum over at most 2^8 ranks is below 2^61.
inline constexpr std::int64_t kMaxCollectiveValue = (std::int64_t{1} << 53) - 1;

// The limits of groups.
struct GroupOptions {
  // Each takes a thread and world_size connections.
  std::uint32_t max_groups = 16;
  std::uint32_t max_world_size = 64;
  std::uint32_t max_queued_operations = 64;  // per group; more return queue_full
  std::uint32_t max_values = 4'096;          // of one all_reduce: one message of 32 KiB per rank
  std::uint32_t join_timeout_ms = 60'000;    // until all ranks have joined
  // For each step of an operation: until the other ranks begin it, then for each piece.
  std::uint32_t step_timeout_ms = 30'000;
  // Blocks are sent together until they reach this size: NCCL is slow with smaller pieces.
  std::uint64_t piece_bytes = 8ull << 20;
  std::uint64_t packing_bytes = 64ull << 20;  // pinned memory for blocks not sent in place
  std::string host = "127.0.0.1";             // local groups: the address this server listens on
  std::string collective = "local";  // kind of the groups that rank 0 makes: "local" or "nccl"
};

}  // namespace cairn
