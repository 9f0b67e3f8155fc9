#pragma once

#include <cstdint>

namespace cairn {

// Whether a cache goes by the order of eviction that is set or by LRU: by what models of both, of
// the same size and told the same requests, have hit lately. LRU is followed where the order did
// worse by kWorse of the blocks asked for, and by more than chance would have it, and left where
// the order does better by kBetter lately, and in the longer run it has lost nothing or following
// the choice has won: a workload that shifts to and fro would have the cache change with it, each
// time too late. Where it comes too late all the same, a model that follows the choice finds less
// than LRU: so LRU is followed where that has lost kLost in the longer run, and not left before it
// has lost less than kRegained.
//
// Lately is a window of kWindowCapacities times the blocks that a model holds, the longer run one
// of kLongWindows times as many; what is older than that counts a third. In a small cache few
// requests are a window, and the blocks of each share their fate: chance is told from the requests'
// own scatter. Not thread-safe.
class OrderChoice {
 public:
  static constexpr double kWindowCapacities = 2;
  static constexpr double kLongWindows = 32;
  static constexpr double kWorse = 0.01;
  static constexpr double kBetter = 0.005;
  static constexpr double kLost = 0.005;
  static constexpr double kRegained = 0.003;
  static constexpr double kDeviations = 3;  // beyond which it is no chance

  // `model_blocks` are those that a model holds.
  explicit OrderChoice(std::uint32_t model_blocks)
      : lately_{.blocks = kWindowCapacities * model_blocks},
        longer_{.blocks = kLongWindows * kWindowCapacities * model_blocks},
        chosen_{.blocks = longer_.blocks} {}

  // A request for so many blocks, of which the order hit so many more than LRU, and what follows
  // the choice.
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
    double blocks = 0;  // after which what was counts a third
    double more_hits = 0;
    double squares = 0;  // of each request's
    double asked_blocks = 0;

    void add(double more, double asked);
    // Of the blocks asked for; a few requests are no window.
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
