#pragma once

#include <algorithm>
#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "client/cache_client.hpp"
#include "replay/options.hpp"
#include "replay/tally.hpp"
#include "replay/workload.hpp"

namespace cairn::replay {

// The calls of one connection to the server: timed, tried again while the server is busy, and
// counted. For one thread at a time.
class StepCalls {
 public:
  // Number of tries for a request that is refused temporarily (429, 503, 507).
  static constexpr int kTries = 8;
  // The longest wait between two tries. If a server asks for more, it is asked again anyway,
  // because the number of tries bounds the time.
  static constexpr std::chrono::milliseconds kMaxPause{250};

  struct Config {
    // Waits between tries. Tests can replace it.
    std::function<void(std::chrono::milliseconds)> pause;
    // Called with each problem, once each time, on the caller's thread.
    std::function<void(std::string_view)> report;
    std::optional<EngineModel> engine = {};
  };
  explicit StepCalls(Config config) : config_(std::move(config)) {}

  Tally& tally() { return tally_; }
  void pause(std::chrono::milliseconds time) { config_.pause(std::min(time, kMaxPause)); }
  void report(std::string_view text) { config_.report(text); }
  // Counts and reports a call that failed for good.
  void failed(Step step, const client::ClientError& error);
  // Whether the server has responded at all since begin_request().
  bool server_answers() const { return server_answers_; }
  void begin_request() {
    server_answers_ = true;
    spent_ = {};
  }
  // The engine has what the server has of a request: the rest is computed, by the model.
  struct Loaded {
    std::uint64_t blocks = 0;  // that were loaded
    std::uint64_t keys = 0;    // of the request's, that need no computation
  };
  void loaded(const PromptRequest& request, const Loaded& loaded);

  // The server works, but cannot take this now. (A 507 asks for something smaller instead.)
  static bool is_busy(const client::ClientError& error) {
    return error.status == 429 || error.status == 503;
  }
  // No room for this number of blocks: too many are leased, or the tier is smaller.
  static bool has_no_room(const client::ClientError& error) {
    return error.status == 507 || (error.status == 422 && error.code == "impossible");
  }

  template <class Call>
  auto tried(Step step, Call&& call) -> decltype(call()) {
    const auto first_start = std::chrono::steady_clock::now();
    for (int next_try = 1;; ++next_try) {
      const auto start = std::chrono::steady_clock::now();
      auto answer = call();
      const auto now = std::chrono::steady_clock::now();
      if (answer) tally_.add_latency(step, now - start);
      if (answer) spent_ += now - first_start;
      if (answer || !is_busy(answer.error()) || next_try == kTries) return answer;
      ++tally_.retries;
      const std::chrono::milliseconds doubled(1 << next_try);
      const std::chrono::milliseconds asked(answer.error().retry_after_ms);
      pause(std::max(doubled, asked));
    }
  }

 private:
  const Config config_;
  Tally tally_;
  bool server_answers_ = true;
  std::chrono::nanoseconds spent_{};  // in the request's calls, with the waits between tries
};

// What takes the prompts of one connection through the server.
class PromptRunner {
 public:
  virtual ~PromptRunner() = default;
  // Returns false if the server did not respond at all.
  virtual bool run(const PromptRequest& request) = 0;
  Tally& tally() { return calls().tally(); }
  // For calls between two prompts.
  virtual StepCalls& calls() = 0;
  virtual client::CacheClient& client() = 0;
};

}  // namespace cairn::replay
