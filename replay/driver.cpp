#include "replay/driver.hpp"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "base/mutex.hpp"
#include "replay/action_sender.hpp"
#include "replay/frontend.hpp"
#include "replay/group_frontend.hpp"

namespace cairn::replay {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

// A connection that finds no server this often in a row ends the replay, instead of rushing through
// the rest of the trace.
constexpr int kMaxUnanswered = 5;
constexpr milliseconds kUnansweredPause{200};
constexpr milliseconds kProgressEvery{100};

// Returns early if a stop is requested.
void sleep_until(steady_clock::time_point when, const std::stop_token& stop) {
  std::mutex mutex;
  std::condition_variable_any never;
  std::unique_lock lock(mutex);
  never.wait_until(lock, stop, when, [] { return false; });
}

// Distributes the workload to the connections. Thread-safe.
class Dealer {
 public:
  Dealer(Workload& workload, std::uint64_t limit) : workload_(workload), limit_(limit) {}

  std::optional<PromptRequest> next() {
    const MutexLock lock(mutex_);
    if (!error_.empty() || (limit_ > 0 && dealt_ == limit_)) return std::nullopt;
    auto request = workload_.next();
    if (!request) {
      error_ = request.error().detail;
      return std::nullopt;
    }
    if (request->has_value()) ++dealt_;
    return std::move(*request);
  }

  double fraction_done() const {
    const MutexLock lock(mutex_);
    const double of_limit =
        limit_ > 0 ? static_cast<double>(dealt_) / static_cast<double>(limit_) : 0;
    return std::max(of_limit, workload_.fraction_done());
  }

  void break_off(std::string why) {
    const MutexLock lock(mutex_);
    if (error_.empty()) error_ = std::move(why);
  }

  std::string broken_off() const {
    const MutexLock lock(mutex_);
    return error_;
  }

 private:
  mutable Mutex mutex_;
  Workload& workload_;
  const std::uint64_t limit_;
  std::uint64_t dealt_ CAIRN_GUARDED_BY(mutex_) = 0;
  std::string error_ CAIRN_GUARDED_BY(mutex_);
};

// The threads of one replay and their shared state.
class Connections {
 public:
  Connections(const ReplayOptions& options, const TargetCache& target, Dealer& dealer,
              const KeyMaker& keys, Console& console, const std::stop_token& stop)
      : speed_(options.speed),
        dealer_(dealer),
        keys_(keys),
        cache_(target.name),
        console_(console),
        stop_(stop) {
    for (std::uint32_t i = 0; i < options.connections; ++i) {
      Frontend::Config config{
          .server = options.server,
          .http = {options.timeout_ms, options.token, options.tls},
          .target = target,
          .store_mode = options.store_mode,
          .read_mode = options.read_mode,
          .lease_ms = options.lease_ms,
          .engine = options.engine,
          .pause = [this](milliseconds time) { sleep_until(steady_clock::now() + time, stop_); },
          .report = [this](std::string_view text) { console_.message(text); }};
      if (target.kv_model) {
        frontends_.push_back(std::make_unique<GroupFrontend>(std::move(config), keys));
      } else {
        frontends_.push_back(std::make_unique<Frontend>(std::move(config), keys));
      }
    }
  }

  std::chrono::nanoseconds run() {
    start_ = steady_clock::now();
    std::vector<std::jthread> threads;
    for (auto& frontend : frontends_) {
      threads.emplace_back([this, &frontend = *frontend] {
        work(frontend);
        const MutexLock lock(mutex_);
        ++ended_;
        ended_changed_.notify_one();
      });
    }
    {
      const MutexLock lock(mutex_);
      while (ended_ < frontends_.size()) {
        ended_changed_.wait_for(mutex_, kProgressEvery);
        console_.progress({dealer_.fraction_done(), requests_.load(std::memory_order_relaxed),
                           wrong_blocks_.load(std::memory_order_relaxed)},
                          steady_clock::now() - start_);
      }
    }
    threads.clear();
    return steady_clock::now() - start_;
  }

  Tally total() {
    Tally total;
    for (auto& frontend : frontends_) total.add(std::move(frontend->tally()));
    return total;
  }

 private:
  void work(PromptRunner& frontend) {
    ActionSender actions(frontend, keys_, pins_, {.cache = cache_, .speed = speed_});
    int unanswered = 0;
    while (!stop_.stop_requested()) {
      const auto request = dealer_.next();
      if (!request) return;
      for (const AgentAction& action : request->before) {
        await(action.timestamp_ms, frontend.tally());
        actions.send(action, *request);
      }
      await(request->timestamp_ms, frontend.tally());
      const std::uint64_t wrong_before = frontend.tally().wrong_blocks;
      unanswered = frontend.run(*request) ? 0 : unanswered + 1;
      for (const AgentAction& action : request->after) actions.send(action, *request);
      requests_.fetch_add(1, std::memory_order_relaxed);
      wrong_blocks_.fetch_add(frontend.tally().wrong_blocks - wrong_before,
                              std::memory_order_relaxed);
      if (unanswered == kMaxUnanswered) {
        dealer_.break_off("the server does not answer any more");
        return;
      }
      if (unanswered > 0) sleep_until(steady_clock::now() + kUnansweredPause, stop_);
    }
  }

  void await(std::uint64_t timestamp_ms, Tally& tally) const {
    if (speed_ <= 0) return;
    const auto due =
        start_ +
        std::chrono::duration_cast<steady_clock::duration>(
            std::chrono::duration<double, std::milli>(static_cast<double>(timestamp_ms) / speed_));
    sleep_until(due, stop_);
    const auto late = std::chrono::duration_cast<milliseconds>(steady_clock::now() - due).count();
    tally.late_ms = std::max(tally.late_ms, static_cast<std::uint64_t>(std::max<long>(late, 0)));
  }

  const double speed_;
  Dealer& dealer_;
  const KeyMaker& keys_;
  const std::string cache_;
  PinBook pins_;
  Console& console_;
  const std::stop_token stop_;
  steady_clock::time_point start_;
  std::vector<std::unique_ptr<PromptRunner>> frontends_;
  std::atomic<std::uint64_t> requests_ = 0;
  std::atomic<std::uint64_t> wrong_blocks_ = 0;
  Mutex mutex_;
  Condition ended_changed_;
  std::size_t ended_ CAIRN_GUARDED_BY(mutex_) = 0;
};

}  // namespace

client::Answer<Outcome> replay(const ReplayOptions& options, Workload& workload, Console& console,
                               const std::stop_token& stop) {
  client::CacheClient client(options.server, {options.timeout_ms, options.token, options.tls});
  auto target = open_target(client, options);
  if (!target) return std::move(target).error();
  auto before = match_counts(client, target->name);
  if (!before) return std::move(before).error();
  auto prefetched = prefetch_counts(client, target->name);
  if (!prefetched) return std::move(prefetched).error();

  Outcome outcome;
  outcome.target = *target;
  Dealer dealer(workload, options.limit);
  const KeyMaker keys(workload.name());
  Connections connections(options, *target, dealer, keys, console, stop);
  outcome.duration = connections.run();
  outcome.tally = connections.total();
  outcome.broken_off = dealer.broken_off();
  if (outcome.broken_off.empty() && stop.stop_requested()) outcome.broken_off = "interrupted";

  auto after = match_counts(client, target->name);
  if (after) {
    outcome.server = *after - *before;
  } else if (outcome.broken_off.empty()) {
    outcome.broken_off = "the server's counts: " + after.error().detail;
  }
  if (options.actions) {
    auto now = prefetch_counts(client, target->name);
    if (now) outcome.prefetched = grown(*prefetched, std::move(*now));
  }
  if (target->own && !options.keep) {
    auto gone = client.delete_cache(target->name, true);
    if (!gone) console.message("deleting " + target->name + ": " + gone.error().detail);
  }
  return outcome;
}

}  // namespace cairn::replay
