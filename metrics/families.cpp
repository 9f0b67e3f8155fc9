#include "metrics/families.hpp"

#include "base/hash.hpp"
#include "base/hex.hpp"
#include "base/printable.hpp"

namespace cairn {
namespace {

// Some values come from others: the names of a shared store's nodes and of its servers. A value
// that is no text or too long is shown as printable ASCII with a hash of the original, so two of
// them never become one series.
std::string label_value(std::string_view given) {
  // The longest valid one: a URL with a host's name of 253 bytes.
  constexpr std::size_t kMaxBytes = 280;
  constexpr std::size_t kShownBytes = 64;  // each of which can become four
  std::string shown;
  append_printable(shown, given.substr(0, kMaxBytes));
  if (shown == given) return shown;
  shown.clear();
  append_printable(shown, given.substr(0, kShownBytes));
  const std::uint64_t hash = hash_bytes(std::as_bytes(std::span(given)), 0);
  return shown + '~' + to_hex(std::as_bytes(std::span(&hash, 1)));
}

}  // namespace

MetricFamilyBuilder::MetricFamilyBuilder(MetricName name, prometheus::MetricType type) {
  family_.name = name.name;
  family_.help = name.help;
  family_.type = type;
}

prometheus::ClientMetric& MetricFamilyBuilder::series(MetricLabels labels) {
  auto& metric = family_.metric.emplace_back();
  for (const auto& [name, value] : labels) {
    metric.label.push_back({std::string(name), label_value(value)});
  }
  return metric;
}

void MetricFamilyBuilder::add(MetricLabels labels, std::uint64_t value) {
  add(labels, static_cast<double>(value));
}

void MetricFamilyBuilder::add(MetricLabels labels, double value) {
  auto& metric = series(labels);
  // Only the field of the family's type is shown.
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
