#pragma once

#include <map>
#include <string>
#include <string_view>

namespace cairn::client {

// The samples of a Prometheus text exposition, by `name{label="value",…}` as written there.
class Metrics {
 public:
  // Skips comments and lines that it cannot read.
  static Metrics parse(std::string_view text);

  // `series` as written: `cairn_blocks{cache="default",tier="disk",state="free"}`. 0 if absent,
  // like a counter that never moved.
  double value(const std::string& series) const;
  bool contains(const std::string& series) const { return samples_.contains(series); }
  const std::map<std::string, double>& samples() const { return samples_; }

 private:
  std::map<std::string, double> samples_;
};

}  // namespace cairn::client
