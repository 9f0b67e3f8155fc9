#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.hpp"
#include "blockmgr/index/types.hpp"
#include "transport/collective/numbers.hpp"

namespace cairn {

enum class TransferState : std::uint8_t { queued, running, done, failed, cancelled };
std::string_view to_string(TransferState state);
std::optional<TransferState> transfer_state_from(std::string_view word);

// A transfer in a list, without its failures: there may be very many.
struct TransferSummary {
  TransferId id;
  std::string cache;  // empty for a group
  TransferState state = TransferState::queued;
  std::uint64_t blocks_done = 0;
  std::uint64_t blocks_total = 0;
  std::uint64_t blocks_failed = 0;
  std::uint64_t bytes = 0;
  std::optional<Error> error = {};                  // what ended it, if no single key did
  std::optional<std::uint64_t> agreed_blocks = {};  // for a group that agreed
  std::optional<Numbers> values = {};               // for a group that reduced numbers
  // For a copy to or from an agent: layers that have arrived of all blocks, counted from the first
  // layer.
  std::optional<std::uint64_t> layers_done = {};
};
struct TransferStatus : TransferSummary {
  struct Failure {
    BlockKey key;
    Error error;
  };
  std::vector<Failure> failures = {};
};

struct TransferListRequest {
  std::optional<std::string> cache = {};
  std::optional<TransferState> state = {};
  std::function<bool(std::string_view cache)> may_see = {};  // empty: all
  std::uint32_t limit = 100;
  std::uint64_t cursor = 0;  // 0: from the oldest
};
struct TransferList {
  std::vector<TransferSummary> transfers = {};
  std::uint64_t next_cursor = 0;  // 0: no more
};

// A block on its way to another tier, or waiting for that.
struct PendingBlock {
  BlockKey key;
  Tier from = Tier::device;
  Tier to = Tier::disk;
  std::uint64_t age_ms = 0;  // since it has waited
};
struct PendingRequest {
  std::uint32_t limit = 100;
  std::uint64_t cursor = 0;  // 0: from the start
};
struct PendingList {
  std::vector<PendingBlock> blocks = {};
  std::uint64_t next_cursor = 0;  // 0: no more
};

}  // namespace cairn
