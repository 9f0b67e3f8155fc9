#include "metrics/families.hpp"

namespace cairn {

MetricFamilyBuilder::MetricFamilyBuilder(MetricName name, prometheus::MetricType type) {
  family_.name = name.name;
  family_.help = name.help;
  family_.type = type;
}

prometheus::ClientMetric& MetricFamilyBuilder::series(MetricLabels labels) {
  auto& metric = family_.metric.emplace_back();
  for (const auto& [name, value] : labels) {
    metric.label.push_back({std::string(name), std::string(value)});
  }
  return metric;
}

void MetricFamilyBuilder::add(MetricLabels labels, std::uint64_t value) {
  add(labels, static_cast<double>(value));
}

void MetricFamilyBuilder::add(MetricLabels labels, double value) {
  auto& metric = series(labels);
  // Only the one of the family's type is shown.
  metric.counter.value = value;
  metric.gauge.value = value;
}

void MetricFamilyBuilder::add(MetricLabels labels, const DurationHistogram::Snapshot& durations) {
  // Dividing gives the decimal bound that a person would write; multiplying by 1e-6 does not.
  constexpr double kUsPerSecond = 1e6;
  auto& histogram = series(labels).histogram;
  std::uint64_t cumulative = 0;
  for (std::size_t i = 0; i < DurationHistogram::kBoundsUs.size(); ++i) {
    cumulative += durations.counts[i];
    histogram.bucket.push_back(
        {cumulative, static_cast<double>(DurationHistogram::kBoundsUs[i]) / kUsPerSecond});
  }
  cumulative += durations.counts.back();
  // The serialiser adds the bucket +Inf from the count.
  histogram.sample_count = cumulative;
  histogram.sample_sum = static_cast<double>(durations.sum_us) / kUsPerSecond;
}

}  // namespace cairn
