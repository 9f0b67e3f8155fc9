#pragma once

#include <sys/uio.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/histogram.hpp"
#include "base/result.hpp"
#include "base/unique_function.hpp"
#include "transport/store/node_durations.hpp"
#include "transport/store/store_operation.hpp"

namespace cairn {

enum class StoreOutcome : std::uint8_t {
  done,
  absent,   // there is no such value; of a write: there was one already
  refused,  // the store said no: full, loading, no rights
  failed,   // no answer, or no connection
};
inline constexpr std::size_t kNumStoreOutcomes = 4;
std::string_view to_string(StoreOutcome outcome);
StoreOutcome outcome_of(const Result<bool>& result);

struct SharedStoreStats {
  struct Operation {
    std::array<std::uint64_t, kNumStoreOutcomes> outcomes{};
    std::uint64_t bytes = 0;
    DurationHistogram::Snapshot durations;
  };
  std::array<Operation, kNumStoreOperations> operations;
  struct Node {
    std::string address;
    bool is_open = false;         // it is not asked for a while, since it failed
    std::string last_error = {};  // empty: none since it answered last
  };
  std::vector<Node> nodes = {};
  bool is_ready = false;  // it is known which node has which names
  // From when a node is asked on: what is refused here, or waits for another node, is none of it.
  std::vector<NodeDurations::OfNode> by_node = {};
};

// Values by name in a store that many servers share. Nothing in it is to be believed: who reads a
// value checks it. Thread-safe; no call waits, and each `done` runs exactly once, on a thread of
// the store's, which it must not hold up.
//
// Errors: unavailable (no node that answers), no_capacity (the store is full), wrong_length (of a
// value that is read), io_error (what the store said), queue_full, cancelled (the store ends).
class SharedStore {
 public:
  virtual ~SharedStore() = default;

  // Which of the names have a value, as far as that is known after `within`.
  struct Probe {
    std::vector<std::string> names;
    std::chrono::microseconds within;
  };
  enum class Presence : std::uint8_t { unknown, absent, present };
  virtual void probe(Probe probe, UniqueFunction<void(std::vector<Presence>)> done) = 0;
  // The value's bytes, which are as many as the memory has; false where there is none. The memory
  // is the store's until the end.
  struct Read {
    std::string name;
    std::vector<iovec> into;
  };
  virtual void read(Read read, UniqueFunction<void(Result<bool>)> done) = 0;
  // False where the name had a value, which stays.
  struct Write {
    std::string name;
    std::vector<iovec> from;   // the store's until the end
    std::uint64_t ttl_ms = 0;  // 0: for as long as the store keeps it
  };
  virtual void write(Write write, UniqueFunction<void(Result<bool>)> done) = 0;
  // Whether there is a value; it was used now, and its time to live begins anew.
  struct Touch {
    std::string name;
    std::uint64_t ttl_ms = 0;  // 0: it stays as it is
  };
  virtual void touch(Touch touch, UniqueFunction<void(Result<bool>)> done) = 0;
  // Nobody is told of the end.
  virtual void erase(std::string name) = 0;

  // --- who has what a name stands for, where it is not here itself
  // Says so under each name, for so long, as the store measures time; said again, that begins anew.
  // Those of others that have run out are forgotten. `done` is told how many were said.
  struct Announce {
    struct Block {
      std::string name;
      std::uint8_t mark = 0;  // 0 to 3: one who says it of himself
    };
    std::vector<Block> blocks;
    std::string who;
    std::uint64_t ttl_ms = 0;
  };
  virtual void announce(Announce announce, UniqueFunction<void(std::size_t)> done) = 0;
  // Nobody is told of the end.
  struct Withdraw {
    std::vector<std::string> names;
    std::string who;
  };
  virtual void withdraw(Withdraw withdraw) = 0;
  // Who said it of each name, some of those who said it last, as far as that is known after
  // `within`. Counts as a probe.
  struct Holder {
    std::string who;
    std::uint8_t mark = 0;
  };
  using Holders = std::vector<Holder>;
  struct FindHolders {
    std::vector<std::string> names;
    std::chrono::microseconds within;
  };
  virtual void find_holders(FindHolders find,
                            UniqueFunction<void(std::vector<std::optional<Holders>>)> done) = 0;

  virtual SharedStoreStats stats() const = 0;
};

}  // namespace cairn
