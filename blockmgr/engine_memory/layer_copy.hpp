#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "base/mutex.hpp"
#include "base/unique_function.hpp"
#include "blockmgr/core/cache_core.hpp"

namespace cairn {

// Copies blocks between two layouts in layer order, a few layers of all blocks at a time. So an
// engine that waits for the first layers can start early. Blocks on disk are copied whole, because
// their checksum covers the whole block. Thread-safe.
class LayerCopy : public std::enable_shared_from_this<LayerCopy> {
 public:
  struct Failure {
    std::size_t pair = 0;
    Error error;
  };
  struct Request {
    std::shared_ptr<CacheCore> core = {};  // owns the tier, and any slots on disk, of one side
    const BlockLayout* source = nullptr;   // both must live until `ended` has run
    const BlockLayout* destination = nullptr;
    std::vector<BlockPair> pairs = {};
    std::optional<Geometry::Outers> source_outers = {};  // see TransferJob
    Urgency urgency = Urgency::client;
    // Called before each step; an error ends all pairs with it.
    std::function<Result<>()> may_go_on = {};
    // `layers` layers of all pairs have arrived. Called on engine threads; the numbers rise.
    std::function<void(std::uint64_t layers)> progressed = {};
    // Called once, when nothing is in progress any more, with all pairs that failed. Runs on an
    // engine thread, or inside start() or cancel().
    UniqueFunction<void(std::vector<Failure>)> ended = {};
  };
  static std::shared_ptr<LayerCopy> start(Request request);
  // Ends what has not started as cancelled.
  void cancel();

  explicit LayerCopy(Request request);

 private:
  // A range of layers. Its layouts must outlive its job.
  struct Step {
    std::uint64_t end_layer = 0;
    std::optional<BlockLayout> source = {};  // nullopt: all layers
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
  bool reported_ CAIRN_GUARDED_BY(mutex_) = false;
  std::uint64_t layers_done_ CAIRN_GUARDED_BY(mutex_) = 0;
  std::map<std::size_t, Error> errors_ CAIRN_GUARDED_BY(mutex_);  // first error of each pair
};

}  // namespace cairn
