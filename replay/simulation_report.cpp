#include "replay/simulation_report.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <iomanip>
#include <nlohmann/json.hpp>
#include <ostream>

namespace cairn::replay {
namespace {

constexpr double kWidth = 720;
constexpr double kHeight = 400;
constexpr double kLeft = 56;
constexpr double kRight = 120;  // for the names of the lines
constexpr double kTop = 24;
constexpr double kBottom = 48;
// Distinguishable in grey too (Okabe and Ito, 2008).
constexpr std::array<const char*, 6> kColours = {"#000000", "#0072b2", "#d55e00",
                                                 "#009e73", "#cc79a7", "#e69f00"};

// The positions of capacities and rates in the picture.
class Axes {
 public:
  explicit Axes(const SimulationOutcome& outcome) {
    const auto [least, most] = std::ranges::minmax(outcome.capacities_blocks);
    least_ = std::log(static_cast<double>(least));
    most_ = std::max(std::log(static_cast<double>(most)), least_ + 1);
    for (const auto& row : outcome.rows) {
      for (const double rate : row.hit_rates) top_ = std::max(top_, rate);
    }
    top_ = std::ceil(top_ * 10) / 10;
  }
  double x(std::uint32_t capacity) const {
    const double share = (std::log(static_cast<double>(capacity)) - least_) / (most_ - least_);
    return kLeft + share * (kWidth - kLeft - kRight);
  }
  double y(double rate) const {
    return kHeight - kBottom - rate / top_ * (kHeight - kTop - kBottom);
  }
  double top() const { return top_; }

 private:
  double least_ = 0;
  double most_ = 1;
  double top_ = 0.1;
};

void draw_axes(std::ostream& out, const SimulationOutcome& outcome, const Axes& axes) {
  for (int tenth = 0; tenth <= std::lround(axes.top() * 10); ++tenth) {
    const double y = axes.y(tenth / 10.0);
    out << "<path d=\"M" << kLeft << " " << y << "H" << kWidth - kRight
        << "\" stroke=\"#ddd\"/><text x=\"" << kLeft - 8 << "\" y=\"" << y + 4
        << "\" text-anchor=\"end\">" << tenth * 10 << "%</text>\n";
  }
  for (const std::uint32_t capacity : outcome.capacities_blocks) {
    out << "<text x=\"" << axes.x(capacity) << "\" y=\"" << kHeight - kBottom + 18
        << "\" text-anchor=\"middle\">" << capacity << "</text>\n";
  }
  out << "<text x=\"" << (kLeft + kWidth - kRight) / 2 << "\" y=\"" << kHeight - 10
      << "\" text-anchor=\"middle\">capacity in blocks</text>\n";
}

void draw_line(std::ostream& out, const SimulationOutcome& outcome, std::size_t row,
               const Axes& axes) {
  const char* colour = kColours[row % kColours.size()];
  out << "<polyline fill=\"none\" stroke-width=\"2\" stroke=\"" << colour << "\" points=\"";
  for (std::size_t i = 0; i < outcome.capacities_blocks.size(); ++i) {
    out << axes.x(outcome.capacities_blocks[i]) << "," << axes.y(outcome.rows[row].hit_rates[i])
        << " ";
  }
  // The names in a column, in the order of the rows: names of lines that end together would
  // overlap.
  const double y = kTop + 18 * static_cast<double>(row);
  out << "\"/>\n<path stroke-width=\"2\" stroke=\"" << colour << "\" d=\"M" << kWidth - kRight + 10
      << " " << y << "h14\"/><text x=\"" << kWidth - kRight + 28 << "\" y=\"" << y + 4 << "\">"
      << outcome.rows[row].name << "</text>\n";
}

}  // namespace

void print_table(std::ostream& out, const SimulationOutcome& outcome) {
  out << outcome.requests << " requests, " << outcome.blocks << " blocks asked for, "
      << outcome.different << " different; hit rates in %, " << std::fixed << std::setprecision(1)
      << outcome.blocks_per_s / 1e6 << " million blocks/s\n";
  if (outcome.kv_groups) {
    out << "KV groups of " << outcome.kv_groups->model << ":";
    for (const std::string& name : outcome.kv_groups->names) out << " " << name;
    out << "; capacities are blocks of all layers as if each were full, "
        << outcome.kv_groups->block_bytes << " bytes\n";
  }
  if (!outcome.actions.empty()) {
    out << "actions:";
    for (const auto& [type, count] : outcome.actions) out << " " << to_string(type) << " " << count;
    out << "\n";
  }
  out << "\n" << std::left << std::setw(16) << "capacity" << std::right;
  for (const std::uint32_t capacity : outcome.capacities_blocks) {
    out << std::setw(10) << capacity;
  }
  out << "\n" << std::setprecision(2);
  for (const auto& row : outcome.rows) {
    out << std::left << std::setw(16) << row.name << std::right;
    for (const double rate : row.hit_rates) out << std::setw(10) << 100 * rate;
    out << "\n";
  }
}

void print_json(std::ostream& out, const SimulationOutcome& outcome) {
  using nlohmann::ordered_json;
  ordered_json rates = ordered_json::object();
  for (const auto& row : outcome.rows) rates[row.name] = row.hit_rates;
  ordered_json result = {{"requests", outcome.requests},
                         {"blocks_asked", outcome.blocks},
                         {"blocks_different", outcome.different},
                         {"blocks_per_s", outcome.blocks_per_s},
                         {"capacities_blocks", outcome.capacities_blocks},
                         {"hit_rates", rates}};
  if (outcome.kv_groups) {
    result["kv_groups"] = {{"model", outcome.kv_groups->model},
                           {"names", outcome.kv_groups->names},
                           {"block_bytes", outcome.kv_groups->block_bytes}};
  }
  for (const auto& [type, count] : outcome.actions) result["actions"][to_string(type)] = count;
  out << result.dump(2) << "\n";
}

void draw(std::ostream& out, const SimulationOutcome& outcome) {
  const Axes axes(outcome);
  out << std::fixed << std::setprecision(1)
      << "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 " << kWidth << " " << kHeight
      << "\" font-family=\"sans-serif\" font-size=\"12\">\n"
         "<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n";
  draw_axes(out, outcome, axes);
  for (std::size_t row = 0; row < outcome.rows.size(); ++row) draw_line(out, outcome, row, axes);
  out << "</svg>\n";
}

}  // namespace cairn::replay
