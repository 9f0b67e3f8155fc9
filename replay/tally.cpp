#include "replay/tally.hpp"

#include <algorithm>
#include <cmath>

#include "base/assert.hpp"

namespace cairn::replay {

std::string_view to_string(Step step) {
  switch (step) {
    case Step::match:
      return "match";
    case Step::read:
      return "read";
    case Step::allocate:
      return "allocate";
    case Step::write:
      return "write";
    case Step::commit:
      return "commit";
    case Step::release:
      return "release";
    case Step::action:
      return "action";
  }
  invariant_broken("Step", "a value outside the enumeration");
}

Percentiles percentiles_of(std::vector<float>& samples_us) {
  if (samples_us.empty()) return {};
  std::sort(samples_us.begin(), samples_us.end());
  const auto at = [&samples_us](double share) {
    const double rank = std::ceil(share * static_cast<double>(samples_us.size()));
    return static_cast<double>(samples_us[static_cast<std::size_t>(std::max(rank, 1.0)) - 1]);
  };
  return {samples_us.size(), at(0.50), at(0.90), at(0.99), at(1.0)};
}

void Tally::add_latency(Step step, std::chrono::nanoseconds taken) {
  latencies_us[static_cast<std::size_t>(step)].push_back(static_cast<float>(taken.count()) /
                                                         1000.0F);
}

Percentiles Tally::latency(Step step) {
  return percentiles_of(latencies_us[static_cast<std::size_t>(step)]);
}

Percentiles Tally::engine_time(EnginePart part) const {
  std::vector<float> samples_us;
  samples_us.reserve(engine_times.size());
  for (const EngineTime& time : engine_times) {
    const float real_us = part == EnginePart::simulated ? 0 : time.real_us;
    const float virtual_us = part == EnginePart::real ? 0 : time.virtual_us;
    samples_us.push_back(real_us + virtual_us);
  }
  return percentiles_of(samples_us);
}

void Tally::add(Tally&& other) {
  requests += other.requests;
  requests_failed += other.requests_failed;
  blocks_asked += other.blocks_asked;
  matched += other.matched;
  full_matched += other.full_matched;
  for (std::size_t i = 0; i < hits.size(); ++i) hits[i] += other.hits[i];
  misses += other.misses;
  stored += other.stored;
  duplicates += other.duplicates;
  not_stored += other.not_stored;
  blocks_read += other.blocks_read;
  bytes_read += other.bytes_read;
  bytes_written += other.bytes_written;
  wrong_bytes += other.wrong_bytes;
  wrong_blocks += other.wrong_blocks;
  leased_missing += other.leased_missing;
  retries += other.retries;
  late_ms = std::max(late_ms, other.late_ms);
  for (const auto& [what, count] : other.errors) errors[what] += count;
  for (const auto& [type, outcomes] : other.actions) {
    for (const auto& [outcome, count] : outcomes) actions[type][outcome] += count;
  }
  engine_times.insert(engine_times.end(), other.engine_times.begin(), other.engine_times.end());
  for (std::size_t i = 0; i < latencies_us.size(); ++i) {
    auto& samples = other.latencies_us[i];
    latencies_us[i].insert(latencies_us[i].end(), samples.begin(), samples.end());
    samples = {};
  }
}

std::uint64_t Tally::errors_total() const {
  std::uint64_t total = 0;
  for (const auto& [what, count] : errors) total += count;
  return total;
}

}  // namespace cairn::replay
