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
  // Evenly spaced pieces per run; 0: all pieces.
  std::uint64_t rows = 0;
};

// One contiguous copy, waited for as the strategy does.
struct StrategyRun {
  CopyWay way = CopyWay::load;
  CopyStrategy strategy = CopyStrategy::async;  // not `automatic`
  std::uint64_t bytes = 0;
};

// Measures copies of pieces that are contiguous in the source and spaced in the destination, like a
// block between the two layouts. Not thread-safe.
class FormMeter {
 public:
  struct Options {
    int device_id = 0;
    // Per run. The meter allocates six times this, and once in unified memory.
    std::uint64_t most_job_bytes = 32ull << 20;
    std::uint32_t rounds = 5;                // the best one counts
    std::uint32_t polling_interval_us = 20;  // for CopyStrategy::polling
  };
  // Borrows both. Returns the runtime's error if memory runs out.
  static Result<FormMeter> make(DeviceRuntime& runtime, const Clock& clock, Options options);

  const Options& options() const { return options_; }
  // Returns bytes per second, from issue to event. Error: out_of_range if the run exceeds
  // most_job_bytes.
  Result<double> rate(const FormRun& run);
  // Returns bytes per second, from issue until the thread knows of the end. With `unified` the
  // device's side is unified memory; impossible if the device has none.
  Result<double> rate(const StrategyRun& run);
  // Rate of a single copy of all bytes, the upper limit for any form.
  Result<double> ceiling(CopyWay way);
  // Total rate of a load and a store at once, on one stream each.
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
  Region unified_;  // empty if the device has none
  std::unique_ptr<Stream> stream_, other_;
};

struct FormRate {
  FormRun run;
  double bytes_per_second = 0;
};

// Measures the rates that derive_thresholds() needs.
Result<std::vector<FormRate>> measure_forms(FormMeter& meter);

struct StrategyRate {
  StrategyRun run;
  double bytes_per_second = 0;
};

// Measures every strategy and way at a few sizes; `unified` only if the device supports it.
Result<std::vector<StrategyRate>> measure_strategies(FormMeter& meter);

// Derives settings from measure_strategies(). Picks sync or polling if it is clearly faster than an
// event at one size and slower at none, else automatic. Pure function.
CopyStrategies derive_strategies(std::span<const StrategyRate> rates);

// Derives settings from measure_forms(). Picks a form only if it beats the simpler one by more than
// the noise between runs. Pure function.
CopyThresholds derive_thresholds(std::span<const FormRate> rates);

}  // namespace cairn
