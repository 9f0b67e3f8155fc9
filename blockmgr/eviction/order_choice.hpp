#pragma once

#include <cstdint>

namespace cairn {

// Chooses whether a cache follows its own eviction order or LRU, by the recent hits of models of
// both. The models have the same size and get the same requests.
// - To LRU: if the order did worse by kWorse of the blocks asked for, and by more than chance.
// - Back: if the order recently does better by kBetter, and in the longer run it has lost nothing
//   or following the choice has won. Without the latter, a workload that shifts to and fro would
//   switch the cache each time too late.
// - If it switches too late all the same, a model that follows the choice finds less than LRU. So
//   also to LRU if that model has lost kLost in the longer run, and not back before its loss is
//   below kRegained.
//
// "Recently" is a window of kWindowCapacities times the blocks of a model. The longer run is
// kLongWindows times as long. A window fades: a request at its end counts a third. In a small cache
// few requests fill a window, and the blocks of each share their fate, so chance is estimated from
// the scatter of requests. Not thread-safe.
class OrderChoice {
 public:
  static constexpr double kWindowCapacities = 2;
  static constexpr double kLongWindows = 32;
  static constexpr double kWorse = 0.01;
  static constexpr double kBetter = 0.005;
  static constexpr double kLost = 0.005;
  static constexpr double kRegained = 0.003;
  static constexpr double kDeviations = 3;  // a larger difference is not chance

  // `model_blocks`: the size of a model.
  explicit OrderChoice(std::uint32_t model_blocks)
      : lately_{.blocks = kWindowCapacities * model_blocks},
        longer_{.blocks = kLongWindows * kWindowCapacities * model_blocks},
        chosen_{.blocks = longer_.blocks} {}

  // A request: how many more blocks than LRU the order hit, and the model that follows the choice.
  struct Request {
    double more_hits = 0;
    double chosen_more_hits = 0;
    double asked_blocks = 0;
  };
  void add(const Request& request);

  bool follows_lru() const { return follows_lru_; }
  std::uint64_t changes() const { return changes_; }

 private:
  struct Window {
    double blocks = 0;  // after which a request counts a third
    double more_hits = 0;
    double squares = 0;  // sum of each request's squared more_hits
    double asked_blocks = 0;

    void add(double more, double asked);
    // Per block asked for, at least `least_blocks`: a few requests are not a window.
    double gain(double least_blocks) const;
    bool is_no_chance() const;
  };
  bool is_worse(const Window& window) const;

  Window lately_;
  Window longer_;
  Window chosen_;
  bool follows_lru_ = false;
  std::uint64_t changes_ = 0;
};

}  // namespace cairn
