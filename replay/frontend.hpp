#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "client/cache_client.hpp"
#include "replay/block_key.hpp"
#include "replay/options.hpp"
#include "replay/tally.hpp"
#include "replay/target_cache.hpp"
#include "replay/workload.hpp"

namespace cairn::replay {

// One serving frontend on one connection: takes a prompt through match, read, allocate, write,
// commit and release, and counts what happens. One thread at a time.
class Frontend {
 public:
  // Bytes of blocks in memory at once, or one block: what goes in one body is at most this.
  static constexpr std::size_t kBufferBytes = std::size_t{8} << 20U;
  // How often something refused for the moment (429, 503, 507) is tried in all.
  static constexpr int kTries = 8;
  // The longest wait between two tries: a server that asks for more is asked again anyway, as the
  // number of tries is what bounds the time.
  static constexpr std::chrono::milliseconds kMaxPause{250};

  struct Config {
    client::Endpoint server;
    client::HttpOptions http;
    TargetCache target;
    StoreMode store_mode = StoreMode::slots;
    ReadMode read_mode = ReadMode::read;
    std::uint64_t lease_ms = 30'000;
    // Waits between tries. A test's need not.
    std::function<void(std::chrono::milliseconds)> pause;
    // Told what goes wrong, once each time; from the frontend's thread.
    std::function<void(std::string_view)> report;
  };
  Frontend(Config config, const KeyMaker& keys);

  // False where the server did not answer at all.
  bool run(const PromptRequest& request);

  Tally& tally() { return tally_; }

 private:
  // A run of blocks [first, first + count) of the request at hand.
  struct Range {
    std::size_t first = 0;
    std::size_t count = 0;
  };
  enum class Stored : std::uint8_t { yes, no_room, failed };

  client::KeyList keys_of(Range range) const;
  std::span<const std::byte> parent_of(std::size_t index) const;
  std::span<std::byte> buffer_for(std::size_t blocks);
  std::size_t blocks_at_once() const;

  void read_hits(std::size_t count);
  bool read_range(Range range);
  bool read_one_by_one(Range range);
  void compare(Range range);

  void store_misses(Range misses);
  Stored store(Range range);
  Stored store_slots(Range range);
  Stored store_written(Range range);
  void count_statuses(std::span<const client::StoreStatus> statuses);
  Stored given_up(Step step, const client::ClientError& error);

  using RequestEnd = client::CacheClient::RequestEnd;
  // With what is known of the request, where it ends with them.
  void release(std::vector<std::string>& leases, const std::optional<RequestEnd>& end = {});
  void failed(Step step, const client::ClientError& error);
  template <class Call>
  auto timed(Step step, Call&& call) -> decltype(call());
  template <class Call>
  auto tried(Step step, Call&& call) -> decltype(call());

  Config config_;
  const KeyMaker& key_maker_;
  client::CacheClient client_;
  Tally tally_;
  bool server_answers_ = true;
  std::vector<std::byte> keys_;    // of the request at hand, end to end
  std::vector<std::byte> buffer_;  // of blocks on their way
  std::vector<std::string> stored_leases_;
};

}  // namespace cairn::replay
