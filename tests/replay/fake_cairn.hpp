#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "tests/replay/scripted_server.hpp"

namespace cairn::replay_test {

// The fake server's faults and limits.
struct Faults {
  std::size_t capacity_blocks = 1'000'000;  // unleased committed blocks are evicted
  bool flip_a_bit = false;                  // in blocks that are read
  bool swap_blocks = false;                 // the first two that are read
  bool lose_leased = false;                 // reads find nothing
  int busy_answers = 0;                     // the first allocate and write calls that return 503
  std::uint64_t extra_misses = 0;           // in the metrics
};

// The part of the HTTP contract that a replay uses, naively, in memory: one cache with one tier,
// "pinned". Its responses follow the contract, not the client.
class FakeCairn {
 public:
  static constexpr std::size_t kBlockBytes = 256;

  explicit FakeCairn(Faults faults = {}) : faults_(faults) {}
  ScriptedAnswer handle(const ReceivedRequest& request);

  std::size_t capacity_blocks() const { return faults_.capacity_blocks; }
  std::size_t committed() const;
  std::size_t leases() const;
  bool cache_exists() const;
  // The parents of the committed keys, in hex.
  std::map<std::string, std::string> parents() const;

 private:
  struct Slot {
    std::string bytes;
    std::string key;  // in hex; empty while not committed
    std::uint64_t last_use = 0;
  };

  ScriptedAnswer match(const ReceivedRequest& request);
  ScriptedAnswer allocate(const ReceivedRequest& request);
  ScriptedAnswer write_slot(const ReceivedRequest& request);
  ScriptedAnswer commit(const ReceivedRequest& request);
  ScriptedAnswer read(const ReceivedRequest& request);
  ScriptedAnswer get_key(const std::string& key);
  ScriptedAnswer write(const ReceivedRequest& request);
  ScriptedAnswer metrics() const;
  bool make_room(std::size_t count);
  std::string bytes_of(const std::string& key) const;
  std::string store(std::uint64_t slot, const std::string& key, const std::string& parent);

  mutable std::mutex mutex_;
  Faults faults_;
  std::string cache_;
  std::map<std::uint64_t, Slot> slots_;
  std::map<std::string, std::uint64_t> index_;
  std::map<std::string, std::string> parents_;
  std::map<std::string, std::set<std::uint64_t>> leases_;
  std::uint64_t next_slot_ = 0;
  std::uint64_t next_lease_ = 0;
  std::uint64_t time_ = 0;
  std::uint64_t hits_ = 0;
  std::uint64_t misses_ = 0;
};

}  // namespace cairn::replay_test
