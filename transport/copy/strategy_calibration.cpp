#include <algorithm>
#include <optional>

#include "transport/copy/form_meter.hpp"

namespace cairn {
namespace {

// Typical waits: a piece of a layer, a block of a large model, a batch.
constexpr std::uint64_t kLeastRunBytes = 64 << 10;
constexpr std::uint64_t kRunGrowth = 16;
// As for forms, less is noise.
constexpr double kFasterStrategy = 1.05;

double rate_at(std::span<const StrategyRate> rates, const StrategyRun& run) {
  const auto found = std::ranges::find_if(rates, [&](const StrategyRate& rate) {
    return rate.run.way == run.way && rate.run.strategy == run.strategy &&
           rate.run.bytes == run.bytes;
  });
  return found == rates.end() ? 0 : found->bytes_per_second;
}

// Returns the largest gain over an event at any size; nullopt if slower at one.
std::optional<double> strategy_gain(std::span<const StrategyRate> rates, CopyWay way,
                                    CopyStrategy strategy) {
  double most = 0;
  for (const StrategyRate& event : rates) {
    if (event.run.way != way || event.run.strategy != CopyStrategy::async) continue;
    if (event.bytes_per_second <= 0) continue;
    const double gained = rate_at(rates, {way, strategy, event.run.bytes}) / event.bytes_per_second;
    if (gained * kFasterStrategy < 1) return std::nullopt;
    most = std::max(most, gained);
  }
  return most;
}

CopyStrategy derive_strategy(std::span<const StrategyRate> rates, CopyWay way) {
  CopyStrategy best = CopyStrategy::automatic;
  double most = kFasterStrategy;
  for (const CopyStrategy strategy : {CopyStrategy::sync, CopyStrategy::polling}) {
    const auto gained = strategy_gain(rates, way, strategy);
    if (!gained || *gained < most) continue;
    best = strategy;
    most = *gained;
  }
  return best;
}

}  // namespace

Result<std::vector<StrategyRate>> measure_strategies(FormMeter& meter) {
  std::vector<StrategyRate> rates;
  const std::uint64_t most = meter.options().most_job_bytes;
  for (const CopyWay way : kCopyWays) {
    for (const CopyStrategy strategy :
         {CopyStrategy::sync, CopyStrategy::async, CopyStrategy::polling, CopyStrategy::unified}) {
      for (std::uint64_t bytes = std::min(kLeastRunBytes, most); bytes <= most;
           bytes *= kRunGrowth) {
        const StrategyRun run{way, strategy, bytes};
        auto rate = meter.rate(run);
        if (rate) {
          rates.push_back({run, *rate});
        } else if (rate.error().code != ErrorCode::impossible) {
          return std::move(rate).error();
        }
      }
    }
  }
  return rates;
}

CopyStrategies derive_strategies(std::span<const StrategyRate> rates) {
  return {.load = derive_strategy(rates, CopyWay::load),
          .store = derive_strategy(rates, CopyWay::store),
          .device = derive_strategy(rates, CopyWay::device)};
}

}  // namespace cairn
