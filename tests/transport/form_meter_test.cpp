#include "transport/copy/form_meter.hpp"

#include <gtest/gtest.h>

#include <set>

#include "memory/host/host_runtime.hpp"

namespace cairn {
namespace {

constexpr std::uint64_t kJobBytes = 32ull << 20;

// The rates that measure_forms() would return on a machine with this rule.
template <class Rate>
std::vector<FormRate> machine(Rate rate) {
  std::vector<FormRate> rates;
  const auto add = [&](FormRun run) {
    if (run.pieces * run.piece_bytes <= kJobBytes) rates.push_back({run, rate(run)});
  };
  for (const CopyWay way : kCopyWays) {
    for (const CopyForm form : kCopyForms) {
      for (std::uint64_t size = 4 << 10; size <= 8 << 20; size *= 2) {
        add({way, form, size, kJobBytes / size});
      }
      for (std::uint64_t count = 2; count <= 256; count *= 2) {
        add({way, form, 32 << 10, count});
        add({way, form, 32 << 10, 256, count});
      }
    }
  }
  return rates;
}

TEST(DeriveThresholds, TakesTheLoopIfNoFormIsFaster) {
  const CopyThresholds forms = derive_thresholds(machine([](const FormRun&) { return 1e9; }));
  for (const FormThresholds& way : {forms.load, forms.store, forms.device}) {
    EXPECT_EQ(way.kernel_most_piece_bytes, 0u);
    EXPECT_EQ(way.rows_least_rows, 0u);
    EXPECT_EQ(way.batch_least_pieces, 256u);
  }
}

TEST(DeriveThresholds, TakesAKernelUpToTheSizeWhereItStopsWinning) {
  const CopyThresholds forms = derive_thresholds(machine([](const FormRun& run) {
    const bool wins = run.way == CopyWay::load && run.form == CopyForm::kernel &&
                      run.piece_bytes <= 64 << 10 && run.pieces >= 16;
    return wins ? 2e9 : 1e9;
  }));
  EXPECT_EQ(forms.load.kernel_most_piece_bytes, 64u << 10);
  EXPECT_EQ(forms.load.kernel_least_pieces, 16u);
  EXPECT_EQ(forms.store.kernel_most_piece_bytes, 0u);
}

TEST(DeriveThresholds, TakesABatchFromTheCountAtWhichItBeatsALoop) {
  const CopyThresholds forms = derive_thresholds(machine([](const FormRun& run) {
    return run.form == CopyForm::batch && run.pieces >= 8 ? 2e9 : 1e9;
  }));
  EXPECT_EQ(forms.store.batch_least_pieces, 8u);
}

TEST(DeriveThresholds, TakesRowsFromTheLengthAtWhichTheyBeatABatch) {
  const CopyThresholds forms = derive_thresholds(machine([](const FormRun& run) {
    const bool wins = run.way == CopyWay::store && run.form == CopyForm::rows && run.rows >= 32;
    return wins ? 2e9 : 1e9;
  }));
  EXPECT_EQ(forms.store.rows_least_rows, 32u);
  EXPECT_EQ(forms.load.rows_least_rows, 0u);
}

TEST(DeriveThresholds, IgnoresNoise) {
  const CopyThresholds forms = derive_thresholds(
      machine([](const FormRun& run) { return run.form == CopyForm::kernel ? 1.04e9 : 1e9; }));
  EXPECT_EQ(forms.load.kernel_most_piece_bytes, 0u);
}

class FormMeterTest : public testing::Test {
 protected:
  FormMeterTest()
      : runtime_(make_host_runtime({}).value()),
        meter_(FormMeter::make(*runtime_, clock_, {.most_job_bytes = 256 << 10, .rounds = 1})
                   .value()) {}
  const SystemClock clock_;
  const std::unique_ptr<DeviceRuntime> runtime_;
  FormMeter meter_;
};

TEST_F(FormMeterTest, MeasuresEveryFormInEveryDirection) {
  const std::vector<FormRate> rates = measure_forms(meter_).value();
  std::set<std::pair<CopyWay, CopyForm>> measured;
  for (const FormRate& rate : rates) {
    EXPECT_GT(rate.bytes_per_second, 0);
    measured.emplace(rate.run.way, rate.run.form);
  }
  EXPECT_EQ(measured.size(), std::size(kCopyWays) * std::size(kCopyForms));
  for (const CopyWay way : kCopyWays) EXPECT_GT(meter_.ceiling(way).value(), 0);
  EXPECT_GT(meter_.duplex().value(), 0);
}

std::vector<StrategyRate> waits(double sync_small, double sync_large) {
  std::vector<StrategyRate> rates;
  for (const CopyWay way : kCopyWays) {
    for (const std::uint64_t bytes : {64ull << 10, 16ull << 20}) {
      const double sync = bytes == 64 << 10 ? sync_small : sync_large;
      rates.push_back({{way, CopyStrategy::async, bytes}, 1e9});
      rates.push_back({{way, CopyStrategy::polling, bytes}, 1e9});
      rates.push_back({{way, CopyStrategy::sync, bytes}, way == CopyWay::store ? 1e9 : sync});
    }
  }
  return rates;
}

TEST(DeriveStrategies, TakesAStrategyClearlyFasterAtOneSizeAndSlowerAtNone) {
  const CopyStrategies faster = derive_strategies(waits(1.5e9, 1e9));
  EXPECT_EQ(faster.load, CopyStrategy::sync);
  EXPECT_EQ(faster.store, CopyStrategy::automatic);
  EXPECT_EQ(faster.device, CopyStrategy::sync);
  EXPECT_EQ(derive_strategies(waits(1.5e9, 0.9e9)), CopyStrategies{});
  EXPECT_EQ(derive_strategies(waits(1.04e9, 1e9)), CopyStrategies{});
  EXPECT_EQ(derive_strategies({}), CopyStrategies{});
}

TEST_F(FormMeterTest, MeasuresEveryStrategyInEveryDirection) {
  std::set<std::pair<CopyWay, CopyStrategy>> measured;
  for (const StrategyRate& rate : measure_strategies(meter_).value()) {
    EXPECT_GT(rate.bytes_per_second, 0);
    measured.emplace(rate.run.way, rate.run.strategy);
  }
  EXPECT_EQ(measured.size(), std::size(kCopyWays) * (kNumCopyStrategies - 1));
  EXPECT_EQ(meter_.rate(StrategyRun{.bytes = (256 << 10) + 1}).error().code,
            ErrorCode::out_of_range);
}

TEST_F(FormMeterTest, RefusesARunLargerThanItsMemory) {
  EXPECT_EQ(meter_.rate(FormRun{.piece_bytes = 4096, .pieces = 65}).error().code,
            ErrorCode::out_of_range);
  EXPECT_EQ(meter_.rate(FormRun{.piece_bytes = 1ull << 63, .pieces = 2}).error().code,
            ErrorCode::out_of_range);
  EXPECT_EQ(meter_.rate(FormRun{.piece_bytes = 4096, .pieces = 0}).error().code,
            ErrorCode::out_of_range);
}

}  // namespace
}  // namespace cairn
