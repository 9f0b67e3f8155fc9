#pragma once

#include <cstdint>
#include <iosfwd>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace cairn::ctl {

// Columns under headings for people. The first column is words; numbers are aligned to the right.
class TextTable {
 public:
  explicit TextTable(std::vector<std::string> headings) : rows_{std::move(headings)} {}
  void add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
  void print(std::ostream& out) const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

std::string bytes_text(double bytes);                 // "1.5 GiB"
std::string duration_text(std::uint64_t ms);          // "3d 4h", "12.5s"
std::string rate_text(double per_second);             // "12.3k"
std::string percent_text(double part, double whole);  // "-" if zero
std::string time_text(std::int64_t unix_ms);          // "2024-05-01 12:00:00Z"
// How to get the rest of a list.
void print_cursor(const nlohmann::json& list, std::ostream& out);

}  // namespace cairn::ctl
