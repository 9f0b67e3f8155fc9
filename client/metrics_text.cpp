#include "client/metrics_text.hpp"

#include <algorithm>
#include <charconv>

namespace cairn::client {
namespace {

// The end of a line's series: after its '}' (the value of a label may hold spaces), or at the first
// blank.
std::size_t series_end(std::string_view line) {
  const std::size_t blank = line.find(' ');
  const std::size_t labels = line.find('{');
  if (labels == std::string_view::npos || labels > blank) return blank;
  const std::size_t end = line.rfind('}');
  return end == std::string_view::npos ? end : end + 1;
}

}  // namespace

Metrics Metrics::parse(std::string_view text) {
  Metrics metrics;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.empty() || line.front() == '#') continue;
    const std::size_t split = series_end(line);
    if (split >= line.size()) continue;
    const std::size_t number = line.find_first_not_of(' ', split);
    if (number == std::string_view::npos) continue;
    double value = 0;
    // The timestamp after the number is ignored.
    const auto read = std::from_chars(line.data() + number, line.data() + line.size(), value);
    if (read.ec == std::errc()) metrics.samples_[std::string(line.substr(0, split))] = value;
  }
  return metrics;
}

double Metrics::value(const std::string& series) const {
  const auto found = samples_.find(series);
  return found == samples_.end() ? 0 : found->second;
}

}  // namespace cairn::client
