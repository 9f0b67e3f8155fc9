#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/unique_function.hpp"

namespace cairn {

// The pieces of an uncommitted block that are written or being written. Not thread-safe.
class PieceProgress {
 public:
  struct Range {
    std::uint32_t first = 0;
    std::uint32_t count = 0;
  };
  explicit PieceProgress(std::uint32_t pieces) : pieces_(pieces) {}

  bool busy() const { return writers_ > 0; }
  // Returns false if another writer has claimed one of them.
  bool claim(Range range);
  // The state in which a writer leaves its pieces: unchanged, fully written, or partly overwritten.
  enum class End : std::uint8_t { untouched, written, torn };
  void end(Range range, End how);  // REQUIRES: claimed
  bool any_written() const;        // or torn
  // Pieces that are neither written nor torn.
  std::vector<std::uint32_t> missing() const;
  // A block with a torn piece cannot be committed. The piece is torn until it is written again.
  std::optional<std::uint32_t> first_torn() const;
  // Marks filled-in pieces as written. Torn pieces stay torn.
  void set_written(Range range);
  void set_torn(Range range);

  // Some tiers accept only whole blocks, so the writers of pieces take turns. Returns true if it is
  // the caller's turn; else end_turn() returns `turn` when it is.
  bool take_turn(UniqueFunction<void()>& turn);
  // Returns the next writer's function, or an empty one.
  UniqueFunction<void()> end_turn();

 private:
  enum class Content : std::uint8_t { missing, written, torn };
  struct Piece {
    Content content = Content::missing;
    bool claimed = false;
  };
  std::span<Piece> at(Range range);

  std::vector<Piece> pieces_;
  std::uint32_t writers_ = 0;
  bool turn_taken_ = false;
  std::vector<UniqueFunction<void()>> turns_;  // at most one per piece: each writer claimed one
};

}  // namespace cairn
