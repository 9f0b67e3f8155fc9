#include "server/routes/part_uses.hpp"

#include <algorithm>
#include <charconv>
#include <map>
#include <string>
#include <vector>

#include "server/assets/assets.hpp"

namespace cairn {
namespace {

// A line of the text: NAME{LABELS} VALUE, or NAME VALUE.
struct Series {
  std::string_view labels = {};
  double value = 0;
};
using SeriesByName = std::multimap<std::string_view, Series>;

SeriesByName series_of(std::string_view text) {
  SeriesByName all;
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    const std::size_t space = line.rfind(' ');
    if (line.empty() || line.front() == '#' || space == std::string_view::npos) continue;
    Series series;
    const std::size_t name_end = std::min(line.find('{'), space);
    series.labels = line.substr(name_end, space - name_end);
    const std::string_view number = line.substr(space + 1);
    std::from_chars(number.data(), number.data() + number.size(), series.value);
    all.emplace(line.substr(0, name_end), series);
  }
  return all;
}

// `wanted` may begin or end with a `*`, for any text.
bool has_label(std::string_view labels, const std::string& name, std::string_view wanted) {
  const std::string begin = name + "=\"";
  const std::size_t at = labels.find(begin);
  if (at == std::string_view::npos) return false;
  std::string_view value = labels.substr(at + begin.size());
  value = value.substr(0, value.find('"'));
  if (wanted.starts_with('*')) return value.ends_with(wanted.substr(1));
  if (wanted.ends_with('*')) return value.starts_with(wanted.substr(0, wanted.size() - 1));
  return value == wanted;
}

// The sum over the series that have the labels.
double sum(const SeriesByName& all, const ordered_json& use) {
  const ordered_json labels = use.value("labels", ordered_json::object());
  const std::string metric = use.at("metric");
  double total = 0;
  const auto [first, end] = all.equal_range(metric);
  for (auto at = first; at != end; ++at) {
    bool fits = true;
    for (const auto& [name, wanted] : labels.items()) {
      fits = fits && has_label(at->second.labels, name, wanted.get_ref<const std::string&>());
    }
    if (fits) total += at->second.value;
  }
  return total;
}

}  // namespace

ordered_json parts_body(std::string_view metrics) {
  static const ordered_json table = ordered_json::parse(assets::kParts);
  const SeriesByName all = series_of(metrics);
  ordered_json body = ordered_json::object();
  for (const auto& [section, rows] : table.items()) {
    for (const ordered_json& row : rows) {
      if (!row.contains("use")) continue;
      const ordered_json& use = row.at("use");
      ordered_json& part = body[row.at("id").get_ref<const std::string&>()];
      part[use.at("name").get_ref<const std::string&>()] =
          static_cast<std::uint64_t>(sum(all, use));
      if (row.contains("needs")) part["needs"] = row.at("needs");
    }
  }
  return body;
}

}  // namespace cairn
