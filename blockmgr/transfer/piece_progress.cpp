#include "blockmgr/transfer/piece_progress.hpp"

#include <algorithm>
#include <utility>

namespace cairn {

template <class Pieces, class Use>
void PieceProgress::each(Pieces& pieces, Range range, Use&& use) {
  for (std::uint32_t row = 0; row < range.rows; ++row) {
    const std::size_t first = std::size_t{row} * range.row_pieces + range.first;
    for (std::size_t i = first; i < first + range.count; ++i) use(pieces[i]);
  }
}

template <class Is>
bool PieceProgress::all(Range range, Is&& is) const {
  bool are = true;
  each(pieces_, range, [&](const Piece& piece) { are = are && is(piece); });
  return are;
}

bool PieceProgress::claim(Range range) {
  if (is_claimed(range)) return false;
  each(pieces_, range, [](Piece& piece) { piece.claimed = true; });
  ++writers_;
  return true;
}

bool PieceProgress::is_claimed(Range range) const {
  return !all(range, [](const Piece& piece) { return !piece.claimed; });
}

void PieceProgress::end(Range range, End how) {
  each(pieces_, range, [how](Piece& piece) {
    piece.claimed = false;
    if (how == End::written) piece.content = Content::written;
    if (how == End::torn) piece.content = Content::torn;
  });
  --writers_;
}

bool PieceProgress::any_written() const {
  return std::ranges::any_of(pieces_,
                             [](const Piece& piece) { return piece.content != Content::missing; });
}

bool PieceProgress::any_written(Range range) const {
  return !all(range, [](const Piece& piece) {
    return piece.content == Content::missing || piece.content == Content::filled;
  });
}

bool PieceProgress::has_piece() const {
  return std::ranges::any_of(pieces_,
                             [](const Piece& piece) { return piece.content == Content::written; });
}

bool PieceProgress::is_written(Range range) const {
  return all(range, [](const Piece& piece) {
    return piece.content == Content::written && !piece.claimed;
  });
}

std::vector<std::uint32_t> PieceProgress::missing() const {
  std::vector<std::uint32_t> numbers;
  for (std::uint32_t i = 0; i < pieces_.size(); ++i) {
    if (pieces_[i].content == Content::missing) numbers.push_back(i);
  }
  return numbers;
}

std::optional<std::uint32_t> PieceProgress::first_torn() const {
  const auto found = std::ranges::find(pieces_, Content::torn, &Piece::content);
  if (found == pieces_.end()) return std::nullopt;
  return static_cast<std::uint32_t>(found - pieces_.begin());
}

void PieceProgress::set_filled(Range range) {
  each(pieces_, range, [](Piece& piece) {
    if (piece.content == Content::missing) piece.content = Content::filled;
  });
}

void PieceProgress::set_written(Range range) {
  each(pieces_, range, [](Piece& piece) {
    if (piece.content != Content::torn) piece.content = Content::written;
  });
}

void PieceProgress::set_torn(Range range) {
  each(pieces_, range, [](Piece& piece) { piece.content = Content::torn; });
}

bool PieceProgress::take_turn(UniqueFunction<void()>& turn) {
  if (turn_taken_) {
    turns_.push_back(std::move(turn));
    return false;
  }
  turn_taken_ = true;
  return true;
}

UniqueFunction<void()> PieceProgress::end_turn() {
  if (turns_.empty()) {
    turn_taken_ = false;
    return {};
  }
  UniqueFunction<void()> next = std::move(turns_.front());
  turns_.erase(turns_.begin());
  return next;
}

}  // namespace cairn
