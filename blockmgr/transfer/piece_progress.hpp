#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "base/unique_function.hpp"

namespace cairn {

// The pieces of an uncommitted block that are written or being written. Not thread-safe.
class PieceProgress {
 public:
  // `count` pieces from `first` on, and the same again in each of the next `rows` - 1 rows of
  // `row_pieces` pieces.
  struct Range {
    std::uint32_t first = 0;
    std::uint32_t count = 0;
    std::uint32_t rows = 1;
    std::uint32_t row_pieces = 0;
  };
  explicit PieceProgress(std::uint32_t pieces) : pieces_(pieces) {}

  bool busy() const { return writers_ > 0; }
  // Returns false if another writer has claimed one of them.
  bool claim(Range range);
  bool is_claimed(Range range) const;
  // The state in which a writer leaves its pieces: unchanged, fully written, or partly overwritten.
  enum class End : std::uint8_t { untouched, written, torn };
  void end(Range range, End how);  // REQUIRES: claimed
  bool any_written() const;        // or filled, or torn
  bool any_written(Range range) const;
  // True if a whole piece is there that a writer has written.
  bool has_piece() const;
  // True if writers have written all of these pieces, and none has claimed one.
  bool is_written(Range range) const;
  // Pieces that are neither written, filled nor torn.
  std::vector<std::uint32_t> missing() const;
  // A block with a torn piece cannot be committed. The piece is torn until it is written again.
  std::optional<std::uint32_t> first_torn() const;
  // Marks missing pieces as filled: they have content that no writer gave them. Torn pieces stay
  // torn.
  void set_filled(Range range);
  // Marks pieces as written, except torn ones.
  void set_written(Range range);
  void set_torn(Range range);

  // Some tiers accept only whole blocks, so the writers of pieces take turns. Returns true if it is
  // the caller's turn; else end_turn() returns `turn` when it is.
  bool take_turn(UniqueFunction<void()>& turn);
  // Returns the next writer's function, or an empty one.
  UniqueFunction<void()> end_turn();

  // Calls for the end of a claim. take_waiting() returns and forgets them.
  void wait_for_end(UniqueFunction<void()> ended) { waiting_.push_back(std::move(ended)); }
  std::vector<UniqueFunction<void()>> take_waiting() { return std::exchange(waiting_, {}); }

 private:
  enum class Content : std::uint8_t { missing, filled, written, torn };
  struct Piece {
    Content content = Content::missing;
    bool claimed = false;
  };
  template <class Pieces, class Use>
  static void each(Pieces& pieces, Range range, Use&& use);
  template <class Is>
  bool all(Range range, Is&& is) const;

  std::vector<Piece> pieces_;
  std::uint32_t writers_ = 0;
  bool turn_taken_ = false;
  std::vector<UniqueFunction<void()>> turns_;  // at most one per piece: each writer claimed one
  std::vector<UniqueFunction<void()>> waiting_;
};

}  // namespace cairn
