#include "blockmgr/transfer/piece_progress.hpp"

#include <algorithm>

namespace cairn {

std::span<PieceProgress::Piece> PieceProgress::at(Range range) {
  return std::span(pieces_).subspan(range.first, range.count);
}

bool PieceProgress::claim(Range range) {
  const auto wanted = at(range);
  if (std::ranges::any_of(wanted, &Piece::claimed)) return false;
  for (Piece& piece : wanted) piece.claimed = true;
  ++writers_;
  return true;
}

void PieceProgress::end(Range range, End how) {
  for (Piece& piece : at(range)) {
    piece.claimed = false;
    if (how == End::written) piece.content = Content::written;
    if (how == End::torn) piece.content = Content::torn;
  }
  --writers_;
}

bool PieceProgress::any_written() const {
  return std::ranges::any_of(pieces_,
                             [](const Piece& piece) { return piece.content != Content::missing; });
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

void PieceProgress::set_written(Range range) {
  for (Piece& piece : at(range)) {
    if (piece.content == Content::missing) piece.content = Content::written;
  }
}

void PieceProgress::set_torn(Range range) {
  for (Piece& piece : at(range)) piece.content = Content::torn;
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
