#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "base/clock.hpp"
#include "base/result.hpp"
#include "memory/device_runtime.hpp"
#include "transport/copy/copy_choice.hpp"

namespace cairn {

struct FormRun {
  CopyWay way = CopyWay::load;
  CopyForm form = CopyForm::batch;
  std::uint64_t piece_bytes = 0;
  std::uint64_t pieces = 0;
  // Pieces at even distances, one after another; 0: all of them.
  std::uint64_t rows = 0;
};

// One copy in one piece, waited for as the strategy does.
struct StrategyRun {
  CopyWay way = CopyWay::load;
  CopyStrategy strategy = CopyStrategy::async;  // not `automatic`
  std::uint64_t bytes = 0;
};

// Measures how fast a machine copies pieces that lie side by side in the source and apart in the
// destination, as a block's do between the two layouts. Not thread-safe.
class FormMeter {
 public:
  struct Options {
    int device_id = 0;
    std::uint64_t most_job_bytes = 32ull
                                   << 20;    // of a run; six of it are taken, of unified memory one
    std::uint32_t rounds = 5;                // the best of them counts
    std::uint32_t polling_interval_us = 20;  // of CopyStrategy::polling
  };
  // Borrows both. The runtime's error where there is no memory.
  static Result<FormMeter> make(DeviceRuntime& runtime, const Clock& clock, Options options);

  const Options& options() const { return options_; }
  // In bytes a second, from the issue to the event. out_of_range for a run above most_job_bytes.
  Result<double> rate(const FormRun& run);
  // The same, from the issue to the moment at which the thread knows; `unified` with the device's
  // side in unified memory. impossible where the device has none.
  Result<double> rate(const StrategyRun& run);
  // Of one copy of all bytes: no form can be faster.
  Result<double> ceiling(CopyWay way);
  // Of a load and a store at once, on a stream each: the bytes of both.
  Result<double> duplex();

 private:
  FormMeter(const Clock& clock, Options options) : clock_(&clock), options_(options) {}
  struct Sides {
    std::byte* destination;
    const std::byte* source;
  };
  Sides sides(CopyWay way) const;
  Result<double> best_rate(std::span<const MemoryCopy> copies, CopyForm form);

  const Clock* clock_;
  Options options_;
  Region pinned_source_, pinned_destination_, device_source_, device_destination_;
  Region unified_;  // empty: the device has none
  std::unique_ptr<Stream> stream_, other_;
};

struct FormRate {
  FormRun run;
  double bytes_per_second = 0;
};

// Measures what derive_thresholds() asks for.
Result<std::vector<FormRate>> measure_forms(FormMeter& meter);

struct StrategyRate {
  StrategyRun run;
  double bytes_per_second = 0;
};

// Every strategy of every way at a few sizes, `unified` where the device has such memory.
Result<std::vector<StrategyRate>> measure_strategies(FormMeter& meter);

// What to set for each way, from rates by measure_strategies(): sync or polling where it is clearly
// faster than an event at one size and slower at none, else automatic. A pure function.
CopyStrategies derive_strategies(std::span<const StrategyRate> rates);

// What to set, from rates by measure_forms(). A pure function: a form is taken where it is better
// than the plainer one by more than rates vary from run to run.
CopyThresholds derive_thresholds(std::span<const FormRate> rates);

}  // namespace cairn
