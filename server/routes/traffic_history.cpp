#include "server/routes/traffic_history.hpp"

#include <algorithm>

namespace cairn {

TrafficHistory::TrafficHistory(const Clock& clock)
    : clock_(clock),
      last_at_(clock.now()),
      // Numbers increase across restarts: there are fewer than a thousand samples per second.
      last_number_(static_cast<std::uint64_t>(clock.unix_ms())) {}

bool TrafficHistory::is_due() const {
  MutexLock lock(mutex_);
  return clock_.now() - last_at_ >= kPeriod;
}

void TrafficHistory::add(const Counts& now) {
  MutexLock lock(mutex_);
  const TimePoint at = clock_.now();
  Sample sample{.number = ++last_number_,
                .ended_unix_ms = clock_.unix_ms(),
                .duration_ms = static_cast<std::uint64_t>(
                    std::chrono::duration_cast<std::chrono::milliseconds>(at - last_at_).count()),
                .requests = now.requests - last_.requests,
                .received_bytes = now.received_bytes - last_.received_bytes,
                .sent_bytes = now.sent_bytes - last_.sent_bytes};
  std::map<std::uint64_t, CacheCounts> of_caches;
  for (const CacheCounts& cache : now.caches) {
    const CacheCounts& before = last_of_caches_[cache.id];
    sample.asked_blocks += cache.asked_blocks - before.asked_blocks;
    sample.found_blocks += cache.found_blocks - before.found_blocks;
    for (std::size_t from = 0; from < kNumTiers; ++from) {
      for (std::size_t to = 0; to < kNumTiers; ++to) {
        sample.moved[from][to] += cache.moved[from][to] - before.moved[from][to];
      }
    }
    of_caches.emplace(cache.id, cache);
  }
  last_of_caches_ = std::move(of_caches);
  last_ = {
      .requests = now.requests, .received_bytes = now.received_bytes, .sent_bytes = now.sent_bytes};
  last_at_ = at;
  samples_.push_back(sample);
  if (samples_.size() > kMostSamples) samples_.pop_front();
}

std::vector<TrafficHistory::Sample> TrafficHistory::after(std::uint64_t number) const {
  MutexLock lock(mutex_);
  const auto first = std::ranges::upper_bound(samples_, number, {}, &Sample::number);
  return {first, samples_.end()};
}

}  // namespace cairn
