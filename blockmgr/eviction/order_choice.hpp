#pragma once

#include <cstdint>

namespace cairn {

// Whether a cache goes by the order of eviction that is set or by LRU: by what models of both, of
// the same size and told the same requests, have hit lately. LRU is followed where the order did
// worse by kWorse of the blocks asked for, and left where it does better by kBetter: what is
// between is noise, and a change costs hits until the cache holds what the other order keeps.
// Lately is a window that fades: what is older than kWindowCapacities times the blocks that a model
// holds counts a third. Not thread-safe.
class OrderChoice {
 public:
  static constexpr double kWindowCapacities = 4;
  static constexpr double kWorse = 0.01;
  static constexpr double kBetter = 0.005;

  // `model_blocks` are those that a model holds.
  explicit OrderChoice(std::uint32_t model_blocks)
      : window_blocks_(kWindowCapacities * model_blocks) {}

  // A request for so many blocks, of which the order hit so many more than LRU.
  struct Request {
    double more_hits = 0;
    double asked_blocks = 0;
  };
  void add(const Request& request);

  bool follows_lru() const { return follows_lru_; }
  std::uint64_t changes() const { return changes_; }

 private:
  double window_blocks_;
  double more_hits_ = 0;
  double asked_blocks_ = 0;
  bool follows_lru_ = false;
  std::uint64_t changes_ = 0;
};

}  // namespace cairn
