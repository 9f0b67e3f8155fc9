#include "ctl/text_table.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <ctime>
#include <ostream>

namespace cairn::ctl {
namespace {

bool is_number(const std::string& text) {
  return !text.empty() && (text == "-" || (text[0] >= '0' && text[0] <= '9'));
}

std::string with_digits(double value, const char* unit) {
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), value < 10 && value > 0 ? "%.1f%s" : "%.0f%s", value,
                unit);
  return text.data();
}

}  // namespace

void TextTable::print(std::ostream& out) const {
  std::vector<std::size_t> widths(rows_.front().size());
  for (const auto& row : rows_) {
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  for (const auto& row : rows_) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) {
      const std::string room(widths[i] - row[i].size(), ' ');
      // A heading is aligned like its column.
      const std::string& like = &row == &rows_.front() && rows_.size() > 1 ? rows_[1][i] : row[i];
      line += (i == 0 ? "" : "  ") + (i > 0 && is_number(like) ? room + row[i] : row[i] + room);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out << line << "\n";
  }
}

std::string bytes_text(double bytes) {
  constexpr std::array kUnits = {" B", " KiB", " MiB", " GiB", " TiB"};
  std::size_t unit = 0;
  for (; bytes >= 1024 && unit + 1 < kUnits.size(); ++unit) bytes /= 1024;
  return unit == 0 ? std::to_string(static_cast<std::uint64_t>(bytes)) + kUnits[0]
                   : with_digits(bytes, kUnits[unit]);
}

std::string duration_text(std::uint64_t ms) {
  const std::uint64_t seconds = ms / 1000;
  if (seconds < 60) return with_digits(static_cast<double>(ms) / 1000, "s");
  if (seconds < 3600) {
    return std::to_string(seconds / 60) + "m " + std::to_string(seconds % 60) + "s";
  }
  if (seconds < 86'400) {
    return std::to_string(seconds / 3600) + "h " + std::to_string(seconds / 60 % 60) + "m";
  }
  return std::to_string(seconds / 86'400) + "d " + std::to_string(seconds / 3600 % 24) + "h";
}

std::string rate_text(double per_second) {
  if (per_second >= 1e6) return with_digits(per_second / 1e6, "M");
  if (per_second >= 1e4) return with_digits(per_second / 1e3, "k");
  return with_digits(per_second, "");
}

std::string percent_text(double part, double whole) {
  return whole > 0 ? with_digits(100 * part / whole, "%") : "-";
}

std::string time_text(std::int64_t unix_ms) {
  const auto seconds = static_cast<std::time_t>(unix_ms / 1000);
  std::tm parts{};
  std::array<char, 32> text{};
  ::gmtime_r(&seconds, &parts);
  std::strftime(text.data(), text.size(), "%Y-%m-%d %H:%M:%SZ", &parts);
  return text.data();
}

void print_cursor(const nlohmann::json& list, std::ostream& out) {
  const auto& next = list.at("next_cursor");
  if (next.is_string()) out << "more: --cursor " << next.get<std::string>() << "\n";
}

}  // namespace cairn::ctl
