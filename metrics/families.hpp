#pragma once

#include <prometheus/metric_family.h>

#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/histogram.hpp"
#include "blockmgr/index/lock_holds.hpp"
#include "transport/store/node_durations.hpp"

namespace cairn {

struct MetricName {
  std::string_view name;
  std::string_view help;
};

// A value is shown unchanged if it is printable ASCII of at most 280 bytes.
using MetricLabels = std::initializer_list<std::pair<std::string_view, std::string_view>>;

// One metric and its series, gathered.
class MetricFamilyBuilder {
 public:
  static MetricFamilyBuilder counter(MetricName name) {
    return {name, prometheus::MetricType::Counter};
  }
  static MetricFamilyBuilder gauge(MetricName name) {
    return {name, prometheus::MetricType::Gauge};
  }
  static MetricFamilyBuilder histogram(MetricName name) {
    return {name, prometheus::MetricType::Histogram};
  }

  void add(MetricLabels labels, std::uint64_t value);
  void add(MetricLabels labels, double value);
  void add(MetricLabels labels, const DurationHistogram::Snapshot& durations);
  void add(MetricLabels labels, const NodeHistogram::Snapshot& durations);
  void add(MetricLabels labels, const SizeHistogram::Snapshot& sizes);
  void add(MetricLabels labels, const LockHolds::OfUse& holds);

  prometheus::MetricFamily take() && { return std::move(family_); }

 private:
  MetricFamilyBuilder(MetricName name, prometheus::MetricType type);
  prometheus::ClientMetric& series(MetricLabels labels);
  // Buckets with these upper bounds, and one more; `per_second` of their units make a second.
  struct Buckets {
    std::span<const std::uint64_t> bounds;
    std::span<const std::uint64_t> counts;
    std::uint64_t sum = 0;
    double per_second = 1;
  };
  void add_buckets(MetricLabels labels, const Buckets& buckets);

  prometheus::MetricFamily family_;
};

}  // namespace cairn
