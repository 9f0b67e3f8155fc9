#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "base/unique_function.hpp"

namespace cairn {

// Which pieces of an uncommitted block are written, and which are being written. Not thread-safe.
class PieceProgress {
 public:
  struct Range {
    std::uint32_t first = 0;
    std::uint32_t count = 0;
  };
  explicit PieceProgress(std::uint32_t pieces) : states_(pieces, State::missing) {}

  bool busy() const { return writers_ > 0; }
  // False where another writer has one of them.
  bool claim(Range range);
  void end(Range range, bool written);  // REQUIRES: claimed
  bool any_written() const;
  std::vector<std::uint32_t> missing() const;
  // What was filled in because nobody wrote it.
  void set_written(Range range);

  // Tiers that only take whole blocks: pieces are written one after the other. True where it is
  // the caller's turn; else `turn` runs when it is.
  bool take_turn(UniqueFunction<void()>& turn);
  // The next one's turn, or an empty function.
  UniqueFunction<void()> end_turn();

 private:
  enum class State : std::uint8_t { missing, written, missing_claimed, written_claimed };
  std::vector<State> states_;
  std::uint32_t writers_ = 0;
  bool turn_taken_ = false;
  std::deque<UniqueFunction<void()>> turns_;  // no more than pieces: each writer claimed one
};

}  // namespace cairn
