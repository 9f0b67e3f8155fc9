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
  absent,   // no such value; for a write: there was one already
  refused,  // the store returned an error: full, loading, no rights
  failed,   // no reply or no connection
};
inline constexpr std::size_t kNumStoreOutcomes = 4;
std::string_view to_string(StoreOutcome outcome);
StoreOutcome outcome_of(const Result<bool>& result);

struct RemoteStoreStats {
  struct Operation {
    std::array<std::uint64_t, kNumStoreOutcomes> outcomes{};
    std::uint64_t bytes = 0;
    DurationHistogram::Snapshot durations;
  };
  std::array<Operation, kNumStoreOperations> operations;
  struct Node {
    std::string address;
    bool is_open = false;         // it failed and gets no requests for a while
    std::string last_error = {};  // empty: no failure since its last reply
  };
  std::vector<Node> nodes = {};
  bool is_ready = false;  // the slots' nodes are known
  // Time from sending to the reply. Requests that were refused here or wait for another node do not
  // count.
  std::vector<NodeDurations::OfNode> by_node = {};

  // Only of a store in a bucket.
  struct Bucket {
    // Requests sent, by kind, and those that a bound held back.
    std::uint64_t gets = 0;
    std::uint64_t puts = 0;
    std::uint64_t lists = 0;
    std::uint64_t deletes = 0;
    std::uint64_t over_bounds = 0;
    std::uint64_t received_bytes = 0;
    std::uint64_t sent_bytes = 0;
    // What lies in it, as far as this server knows.
    std::uint64_t objects = 0;
    std::uint64_t values = 0;
    std::uint64_t live_bytes = 0;
    std::uint64_t dead_bytes = 0;  // directories, and values that no look-up finds
    std::uint64_t removed_objects = 0;
    std::uint64_t rewritten_objects = 0;
    // What this server's requests have cost by the configured prices, and what the objects of all
    // servers cost each month.
    double requests_cost = 0;
    double cost_per_month = 0;
  };
  std::optional<Bucket> bucket = {};

  // Sums with those of another store; ready if both are.
  void add(RemoteStoreStats other);
};

// Values by name in a store that many servers share. Readers must check each value: the store is
// not trusted. Thread-safe. No call blocks. Each `done` runs exactly once, on the store's thread
// or on the caller's. It must not delay either.
// Errors: unavailable (no node replies), no_capacity (the store is full), wrong_length (a value
// that is read is empty or too long), io_error (the store's own error), queue_full, cancelled (the
// store is being destroyed).
class RemoteStore {
 public:
  virtual ~RemoteStore() = default;

  // What suits this store. Constant.
  struct Habits {
    // Values that are written at the same time; those of one cache are pinned meanwhile.
    std::uint32_t max_writes = 4;
    // Values that are read together: bytes, and number. Several such steps are in progress.
    std::uint64_t step_bytes = 4ull << 20;
    std::uint64_t step_values = 16;
  };
  virtual Habits habits() const { return {}; }

  // Finds out which names have a value, and returns what is known after `within`.
  struct Probe {
    std::vector<std::string> names;
    std::chrono::microseconds within;
  };
  enum class Presence : std::uint8_t {
    unknown,
    absent,
    present,
    far,  // only in the second of two stores
  };
  virtual void probe(Probe probe, UniqueFunction<void(std::vector<Presence>)> done) = 0;
  // Reads values. Those that lie together in the store may come with one request. `done` runs once
  // for each, with its index in the list and its size, at most that of `into`; nullopt: there is
  // none. `into` must stay valid until then.
  struct Read {
    std::string name;
    std::vector<iovec> into;
  };
  using ReadResult = Result<std::optional<std::uint64_t>>;
  using ReadDone = UniqueFunction<void(std::size_t index, ReadResult result)>;
  virtual void read(std::vector<Read> reads, ReadDone done) = 0;
  // Writes a value. Returns false if the name has one already, which stays.
  struct Write {
    std::string name;
    std::vector<iovec> from;   // must stay valid until `done`
    std::uint64_t ttl_ms = 0;  // 0: until the store evicts it
  };
  virtual void write(Write write, UniqueFunction<void(Result<bool>)> done) = 0;
  // Marks the value as used and restarts its TTL. Returns whether it exists.
  struct Touch {
    std::string name;
    std::uint64_t ttl_ms = 0;  // 0: keep the TTL as it is
  };
  virtual void touch(Touch touch, UniqueFunction<void(Result<bool>)> done) = 0;
  // Erases a value, if any. Does not report the result.
  virtual void erase(std::string name) = 0;

  // --- names whose blocks lie on other servers ("holders")
  // Registers `who` under each name with a TTL by the store's clock; repeating refreshes it. Also
  // removes expired holders of these names. `done` gets the number of names that succeeded.
  struct Announce {
    struct Block {
      std::string name;
      std::uint8_t mark = 0;  // 0 to 3: the holder's own mark
    };
    std::vector<Block> blocks;
    std::string who;
    std::uint64_t ttl_ms = 0;
  };
  virtual void announce(Announce announce, UniqueFunction<void(std::size_t)> done) = 0;
  // Removes `who` from the names. Does not report the result.
  struct Withdraw {
    std::vector<std::string> names;
    std::string who;
  };
  virtual void withdraw(Withdraw withdraw) = 0;
  // Finds the holders of each name, at most the latest few, and returns what is known after
  // `within`; nullopt if unknown. Counts as a probe.
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

  virtual RemoteStoreStats stats() const = 0;
};

inline bool is_there(RemoteStore::Presence presence) {
  return presence == RemoteStore::Presence::present || presence == RemoteStore::Presence::far;
}

}  // namespace cairn
