#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "base/mutex.hpp"
#include "base/unique_function.hpp"
#include "blockmgr/cache/cache_core.hpp"

namespace cairn {

// Copies blocks from one layout to another from the first layer to the last, a few layers of all
// blocks at a time, so that who waits for the first can begin with it. Blocks that lie on disk come
// and go whole, since their checksum is of all of a block. Thread-safe.
class LayerCopy : public std::enable_shared_from_this<LayerCopy> {
 public:
  struct Failure {
    std::size_t pair = 0;
    Error error;
  };
  struct Request {
    std::shared_ptr<CacheCore> core = {};  // whose tier one side is, and whose slots on disk
    const BlockLayout* source = nullptr;   // both stay until `ended` has run
    const BlockLayout* destination = nullptr;
    std::vector<BlockPair> pairs = {};
    Urgency urgency = Urgency::client;
    // Asked before each step: an error ends all pairs with it.
    std::function<Result<>()> may_go_on = {};
    // So many layers of all pairs have arrived. On engine threads; the numbers rise.
    std::function<void(std::uint64_t layers)> progressed = {};
    // Once, when nothing moves any more: every pair that did not arrive. On an engine thread, or
    // inside start() or cancel().
    UniqueFunction<void(std::vector<Failure>)> ended = {};
  };
  static std::shared_ptr<LayerCopy> start(Request request);
  // What has not begun ends as cancelled.
  void cancel();

  explicit LayerCopy(Request request);

 private:
  // A run of layers; its layouts stay as long as its job.
  struct Step {
    std::uint64_t end_layer = 0;
    std::optional<BlockLayout> source = {};  // nothing: the whole
    std::optional<BlockLayout> destination = {};
    std::optional<JobId> job = {};
    bool has_ended = false;
    bool has_arrived = false;
  };

  void submit_next();
  bool add_step();
  void submit(std::size_t number);
  void step_ended(std::size_t number, const JobOutcome& outcome);
  void fail_all(const Error& error) CAIRN_REQUIRES(mutex_);

  Request request_;
  const std::uint64_t layers_;
  const std::uint64_t layers_a_step_;
  Mutex mutex_;
  std::vector<std::unique_ptr<Step>> steps_ CAIRN_GUARDED_BY(mutex_);
  std::size_t under_way_ CAIRN_GUARDED_BY(mutex_) = 0;
  bool stopped_ CAIRN_GUARDED_BY(mutex_) = false;
  bool told_ CAIRN_GUARDED_BY(mutex_) = false;
  std::uint64_t layers_done_ CAIRN_GUARDED_BY(mutex_) = 0;
  std::map<std::size_t, Error> errors_ CAIRN_GUARDED_BY(mutex_);  // by pair, the first of each
};

}  // namespace cairn
