#pragma once

#include <cstdint>
#include <optional>
#include <span>
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
  explicit PieceProgress(std::uint32_t pieces) : pieces_(pieces) {}

  bool busy() const { return writers_ > 0; }
  // False where another writer has one of them.
  bool claim(Range range);
  // How a writer leaves what it claimed: as it was, or whole, or with some bytes of its own among
  // those that were there.
  enum class End : std::uint8_t { untouched, written, torn };
  void end(Range range, End how);  // REQUIRES: claimed
  bool any_written() const;        // or torn
  // What nobody has begun to write.
  std::vector<std::uint32_t> missing() const;
  // A block with such a piece is nobody's; it is torn until it is written again.
  std::optional<std::uint32_t> first_torn() const;
  // What was filled in because nobody wrote it; what was torn stays so.
  void set_written(Range range);
  void set_torn(Range range);

  // Tiers that only take whole blocks: pieces are written one after the other. True where it is
  // the caller's turn; else `turn` runs when it is.
  bool take_turn(UniqueFunction<void()>& turn);
  // The next one's turn, or an empty function.
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
  std::vector<UniqueFunction<void()>> turns_;  // no more than pieces: each writer claimed one
};

}  // namespace cairn
