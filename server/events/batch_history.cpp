#include "server/events/batch_history.hpp"

#include <algorithm>
#include <utility>

namespace cairn {

void BatchHistory::add(EventBatch batch) {
  batch.number = next_++;
  bytes_ += batch.payload.size();
  batches_.push_back(std::make_shared<const EventBatch>(std::move(batch)));
  while (batches_.size() > limits_.max_batches || bytes_ > limits_.max_bytes) {
    bytes_ -= batches_.front()->payload.size();
    floor_ = batches_.front()->number + 1;
    batches_.pop_front();
  }
}

std::shared_ptr<const EventBatch> BatchHistory::from(std::uint64_t number) const {
  const auto found = std::ranges::lower_bound(batches_, number, {},
                                              [](const auto& batch) { return batch->number; });
  return found == batches_.end() ? nullptr : *found;
}

std::uint64_t BatchHistory::replay_from(std::uint64_t number) const {
  const std::size_t replayed = std::min(batches_.size(), limits_.max_replayed);
  const std::uint64_t first = replayed == 0 ? next_ : batches_[batches_.size() - replayed]->number;
  return std::max(number, first);
}

}  // namespace cairn
