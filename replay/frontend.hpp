#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "client/cache_client.hpp"
#include "replay/engine_area.hpp"
#include "replay/options.hpp"
#include "replay/replay_blocks.hpp"
#include "replay/step_calls.hpp"
#include "replay/tally.hpp"
#include "replay/target_cache.hpp"
#include "replay/workload.hpp"

namespace cairn::replay {

// One serving frontend on one connection: takes a prompt through match, read, allocate, write,
// commit and release, and counts the results. For one thread at a time.
class Frontend final : public PromptRunner {
 public:
  // Most bytes of blocks in memory at once, or one block: the limit of one body.
  static constexpr std::size_t kBufferBytes = std::size_t{8} << 20U;
  static constexpr int kTries = StepCalls::kTries;
  static constexpr std::chrono::milliseconds kMaxPause = StepCalls::kMaxPause;

  struct Config {
    client::Endpoint server;
    client::HttpOptions http;
    TargetCache target;
    StoreMode store_mode = StoreMode::slots;
    ReadMode read_mode = ReadMode::read;
    std::uint64_t lease_ms = 30'000;
    std::optional<EngineModel> engine = {};
    // Waits between tries. Tests can replace it.
    std::function<void(std::chrono::milliseconds)> pause;
    // Called with each problem, once each time, on the frontend's thread.
    std::function<void(std::string_view)> report;
  };
  Frontend(Config config, const KeyMaker& keys);

  bool run(const PromptRequest& request) override;
  StepCalls& calls() override { return calls_; }
  client::CacheClient& client() override { return client_; }

 private:
  // A run of blocks [first, first + count) of the current request.
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
  bool read(Range range);
  bool read_range(Range range);
  bool read_one_by_one(Range range);
  bool read_into_engine(Range range);
  // The blocks of the range, end to end.
  void compare(Range range, std::span<const std::byte> read);

  void store_misses(Range misses);
  Stored store(Range range);
  Stored store_slots(Range range);
  Stored store_written(Range range);
  void count_statuses(std::span<const client::StoreStatus> statuses);
  Stored given_up(Step step, const client::ClientError& error);

  using RequestEnd = client::CacheClient::RequestEnd;
  // With the numbers of tokens, if the request ends with these blocks.
  void release(std::vector<std::string>& leases, const std::optional<RequestEnd>& end = {});
  void failed(Step step, const client::ClientError& error) { calls_.failed(step, error); }
  template <class Call>
  auto tried(Step step, Call&& call) {
    return calls_.tried(step, std::forward<Call>(call));
  }

  Config config_;
  const KeyMaker& key_maker_;
  client::CacheClient client_;
  StepCalls calls_;
  Tally& tally_;
  std::vector<std::byte> keys_;    // of the current request, one after the other
  std::vector<std::byte> buffer_;  // of blocks being sent or received
  std::vector<std::string> stored_leases_;
  std::unique_ptr<EngineArea> area_;  // once blocks have been loaded into it
};

// The data about a request that a release sends; nullopt if there is none.
std::optional<client::CacheClient::RequestEnd> end_of(const PromptRequest& request);

}  // namespace cairn::replay
