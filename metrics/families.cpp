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
  add_buckets(labels, {.bounds = DurationHistogram::kBounds,
                       .counts = durations.counts,
                       .sum = durations.sum,
                       .per_second = 1e6});
}

void MetricFamilyBuilder::add(MetricLabels labels, const NodeHistogram::Snapshot& durations) {
  add_buckets(labels, {.bounds = NodeHistogram::kBounds,
                       .counts = durations.counts,
                       .sum = durations.sum,
                       .per_second = 1e6});
}

void MetricFamilyBuilder::add(MetricLabels labels, const SizeHistogram::Snapshot& sizes) {
  add_buckets(labels, {.bounds = SizeHistogram::kBounds, .counts = sizes.counts, .sum = sizes.sum});
}

void MetricFamilyBuilder::add(MetricLabels labels, const LockHolds::OfUse& holds) {
  add_buckets(labels, {.bounds = LockHolds::kBoundsNs,
                       .counts = holds.counts,
                       .sum = holds.sum_ns,
                       .per_second = 1e9});
}

void MetricFamilyBuilder::add_buckets(MetricLabels labels, const Buckets& buckets) {
  auto& histogram = series(labels).histogram;
  std::uint64_t cumulative = 0;
  for (std::size_t i = 0; i < buckets.bounds.size(); ++i) {
    cumulative += buckets.counts[i];
    // Dividing gives the decimal bound that a person would write; multiplying by 1e-6 does not.
    histogram.bucket.push_back(
        {cumulative, static_cast<double>(buckets.bounds[i]) / buckets.per_second});
  }
  cumulative += buckets.counts.back();
  // The serialiser adds the bucket +Inf from the count.
  histogram.sample_count = cumulative;
  histogram.sample_sum = static_cast<double>(buckets.sum) / buckets.per_second;
}

}  // namespace cairn
