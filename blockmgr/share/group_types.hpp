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
  joining,  // not every rank is there yet
  ready,
  failed,  // for good: it is left, and made anew under a new unique id
};
inline constexpr std::size_t kNumGroupStates = 3;
std::string_view to_string(GroupState state);

struct GroupJoin {
  std::string name;
  RankPlace place;
  int device_id = 0;
  std::string unique_id = {};  // empty: rank 0's, who is given one
};

struct GroupInfo {
  std::string name;
  RankPlace place;
  int device_id = 0;
  std::string unique_id;
  std::string_view collective;  // "local" or "nccl"
  GroupState state = GroupState::joining;
  std::optional<Error> error = {};      // why it has failed
  std::uint64_t queued_operations = 0;  // the one under way included
};

// What ranks do together with the blocks of a cache, or with numbers.
enum class ShareKind : std::uint8_t { send, recv, broadcast, all_gather, agree, all_reduce };
inline constexpr std::size_t kNumShareKinds = 6;
std::string_view to_string(ShareKind kind);

struct ShareRequest {
  ShareKind kind = ShareKind::broadcast;
  std::shared_ptr<Cache> cache = {};  // null of all_reduce
  std::vector<BlockKey> keys = {};
  std::uint32_t other = 0;        // the peer of send and recv, the root of broadcast
  std::optional<Tier> tier = {};  // where received blocks go; nothing: the cache's highest
  // all_reduce: this rank's numbers, as many on every rank, and what becomes of those in one place.
  std::vector<std::int64_t> values = {};
  Reduction reduction = Reduction::sum;  // sum, min or max
  // What its keys count as until its end; null: nowhere.
  std::shared_ptr<LeaseQuotaShare> pins = {};
};

// Of a number of an all_reduce, on either side of 0: what every reader of JSON tells apart. The sum
// of as many ranks as there may be (2^8) is below 2^61.
inline constexpr std::int64_t kMaxShareValue = (std::int64_t{1} << 53) - 1;

// The bounds of groups.
struct GroupOptions {
  // A thread each, and world_size connections.
  std::uint32_t max_groups = 16;
  std::uint32_t max_world_size = 64;
  std::uint32_t max_queued_operations = 64;  // a group; more are queue_full
  std::uint32_t max_values = 4'096;          // of one all_reduce: one message of 32 KiB a rank
  std::uint32_t join_timeout_ms = 60'000;    // until every rank is there
  // Of a step of an operation: of the wait for the other ranks to begin it, then of each piece.
  std::uint32_t step_timeout_ms = 30'000;
  // Blocks are sent together until they are so many bytes: smaller pieces cost NCCL its speed.
  std::uint64_t piece_bytes = 8ull << 20;
  std::uint64_t packing_bytes = 64ull << 20;  // pinned memory for blocks that are not sent in place
  std::string host = "127.0.0.1";             // local: what this server listens on for its groups
  std::string collective = "local";           // what rank 0 makes groups of: "local" or "nccl"
};

}  // namespace cairn
