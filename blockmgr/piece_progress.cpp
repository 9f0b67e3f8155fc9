#include "blockmgr/piece_progress.hpp"

#include <algorithm>

namespace cairn {

bool PieceProgress::claim(Range range) {
  const auto first = states_.begin() + range.first;
  const auto last = first + range.count;
  const bool taken = std::any_of(first, last, [](State s) {
    return s == State::missing_claimed || s == State::written_claimed;
  });
  if (taken) return false;
  std::for_each(first, last, [](State& s) {
    s = s == State::missing ? State::missing_claimed : State::written_claimed;
  });
  ++writers_;
  return true;
}

void PieceProgress::end(Range range, bool written) {
  const auto first = states_.begin() + range.first;
  std::for_each(first, first + range.count, [written](State& s) {
    s = written || s == State::written_claimed ? State::written : State::missing;
  });
  --writers_;
}

bool PieceProgress::any_written() const {
  return std::any_of(states_.begin(), states_.end(),
                     [](State s) { return s == State::written || s == State::written_claimed; });
}

std::vector<std::uint32_t> PieceProgress::missing() const {
  std::vector<std::uint32_t> pieces;
  for (std::uint32_t i = 0; i < states_.size(); ++i) {
    if (states_[i] == State::missing) pieces.push_back(i);
  }
  return pieces;
}

void PieceProgress::set_written(Range range) {
  const auto first = states_.begin() + range.first;
  std::for_each(first, first + range.count, [](State& s) {
    if (s == State::missing) s = State::written;
    if (s == State::missing_claimed) s = State::written_claimed;
  });
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
  turns_.pop_front();
  return next;
}

}  // namespace cairn
