#include "replay/table_reader.hpp"

#include <algorithm>
#include <boost/tokenizer.hpp>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <string_view>

#include "replay/mix.hpp"

namespace cairn::replay {
namespace {

constexpr std::uint64_t kMaxPromptBlocks = 65'536;  // the server's limit for one request
constexpr double kMaxTokens = 1ULL << 32U;
constexpr double kMaxSeconds = 1e11;  // some 3,000 years: in ms they are exact

Result<std::vector<std::string>> cells_of(std::string_view line) {
  std::vector<std::string> cells;
  const std::string text(line);
  try {
    const boost::tokenizer<boost::escaped_list_separator<char>> split(text);
    cells.assign(split.begin(), split.end());
  } catch (const boost::escaped_list_error& wrong) {
    return Error{ErrorCode::malformed, wrong.what()};
  }
  return cells;
}

// A number of 0 to `most`; a table may write tokens as 374.0.
Result<double> number_of(const std::string& cell, double most) {
  double value = 0;
  const char* const end = cell.data() + cell.size();
  const auto [read_to, error] = std::from_chars(cell.data(), end, value);
  if (error != std::errc() || read_to != end || !(value >= 0 && value <= most)) {
    return Error{ErrorCode::wrong_type, "'" + cell + "' is not a number of 0 or more"};
  }
  return value;
}

// "+00:00", "-0530", "Z" or empty, in seconds east of Greenwich.
std::optional<double> zone_of(std::string_view text) {
  if (text.empty() || text == "Z") return 0.0;
  int hours = 0;
  int minutes = 0;
  std::array<char, 2> sign{};
  int taken = 0;
  const std::string zone(text);
  const bool read =
      std::sscanf(zone.c_str(), "%1[+-]%2d:%2d%n", sign.data(), &hours, &minutes, &taken) == 3 ||
      std::sscanf(zone.c_str(), "%1[+-]%2d%2d%n", sign.data(), &hours, &minutes, &taken) == 3;
  if (!read || static_cast<std::size_t>(taken) != zone.size()) return std::nullopt;
  return (sign[0] == '-' ? -60.0 : 60.0) * (60 * hours + minutes);
}

// Seconds since any start: a number, or "2023-11-16 18:15:46.6805900+00:00".
Result<double> seconds_of(const std::string& cell) {
  int year = 0;
  unsigned month = 0;
  unsigned day = 0;
  int hour = 0;
  int minute = 0;
  int taken = 0;
  const int read = std::sscanf(cell.c_str(), "%4d-%2u-%2u%*1[ T]%2d:%2d:%n", &year, &month, &day,
                               &hour, &minute, &taken);
  if (read < 5 || taken == 0) return number_of(cell, kMaxSeconds);
  double second = 0;
  const char* const end = cell.data() + cell.size();
  const auto [second_end, error] = std::from_chars(cell.data() + taken, end, second);
  const auto zone = zone_of({second_end, end});
  const std::chrono::year_month_day date{std::chrono::year(year), std::chrono::month(month),
                                         std::chrono::day(day)};
  const bool is_time = error == std::errc() && zone && date.ok() && hour >= 0 && hour < 24 &&
                       minute >= 0 && minute < 60 && second >= 0 && second < 61;
  if (!is_time) return Error{ErrorCode::out_of_range, "'" + cell + "' is no time"};
  const auto days = std::chrono::sys_days(date).time_since_epoch().count();
  return static_cast<double>(days) * 86'400 + hour * 3'600 + minute * 60 + second - *zone;
}

}  // namespace

Result<TableColumns> columns_from(const std::string& text) {
  TableColumns columns;
  const auto pairs = cells_of(text);
  if (!pairs) return pairs.error();
  const std::array<std::pair<std::string_view, std::string*>, 4> known = {
      {{"timestamp", &columns.timestamp},
       {"input_tokens", &columns.input_tokens},
       {"output_tokens", &columns.output_tokens},
       {"session", &columns.session}}};
  for (const std::string& pair : *pairs) {
    const std::size_t sign = std::min(pair.find('='), pair.size());
    const auto what = std::ranges::find(known, std::string_view(pair).substr(0, sign),
                                        [](const auto& one) { return one.first; });
    if (what == known.end() || sign + 1 >= pair.size()) {
      return Error{ErrorCode::malformed, "'" + pair +
                                             "' is none of timestamp=NAME, input_tokens=NAME, "
                                             "output_tokens=NAME and session=NAME"};
    }
    *what->second = pair.substr(sign + 1);
  }
  for (const auto& [what, name] : std::span(known).first(3)) {
    if (name->empty()) return Error{ErrorCode::missing_field, std::string(what) + "= is missing"};
  }
  return columns;
}

Result<std::unique_ptr<TableReader>> TableReader::open(const Options& options) {
  auto lines = LineReader::open(options.path);
  if (!lines) return std::move(lines).error();
  const auto head = lines->next();
  if (!head) return head.error();
  if (!head->has_value()) return Error{ErrorCode::malformed, options.path + ": empty"};
  std::string_view text = **head;
  constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";  // as spreadsheets write it
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  const auto names = cells_of(text);
  if (!names) return Error{names.error().code, lines->where() + names.error().detail};
  const auto find = [&](const std::string& name, Column& out) -> Result<> {
    const auto found = std::ranges::find(*names, name);
    if (found == names->end()) {
      return Error{ErrorCode::missing_field, lines->where() + "there is no column '" + name + "'"};
    }
    out = {.name = name, .place = static_cast<std::size_t>(found - names->begin())};
    return {};
  };
  Columns columns;
  CAIRN_TRY(find(options.columns.timestamp, columns.timestamp));
  CAIRN_TRY(find(options.columns.input_tokens, columns.input_tokens));
  CAIRN_TRY(find(options.columns.output_tokens, columns.output_tokens));
  if (!options.columns.session.empty()) {
    Column session;
    CAIRN_TRY(find(options.columns.session, session));
    columns.session = std::move(session);
  }
  return std::unique_ptr<TableReader>(
      new TableReader(std::move(*lines), std::move(columns), options.block_tokens));
}

Result<std::optional<PromptRequest>> TableReader::next() {
  const auto line = lines_.next();
  if (!line) return line.error();
  if (!line->has_value()) return std::optional<PromptRequest>();
  const auto cells = cells_of(**line);
  if (!cells) return Error{cells.error().code, lines_.where() + cells.error().detail};
  auto request = request_of(*cells);
  if (!request) return Error{request.error().code, lines_.where() + request.error().detail};
  return std::optional<PromptRequest>(std::move(*request));
}

Result<PromptRequest> TableReader::request_of(std::span<const std::string> cells) {
  const auto value = [&cells](const Column& column, auto&& read) -> Result<double> {
    if (column.place >= cells.size()) {
      return Error{ErrorCode::missing_field, column.name + ": the line ends before it"};
    }
    const Result<double> number = read(cells[column.place]);
    if (number) return number;
    return Error{number.error().code, column.name + ": " + number.error().detail};
  };
  const auto tokens = [](const std::string& cell) { return number_of(cell, kMaxTokens); };
  const auto time_s = value(columns_.timestamp, seconds_of);
  if (!time_s) return time_s.error();
  const auto input = value(columns_.input_tokens, tokens);
  if (!input) return input.error();
  const auto output = value(columns_.output_tokens, tokens);
  if (!output) return output.error();
  const auto input_tokens = static_cast<std::uint64_t>(*input);
  if (input_tokens / block_tokens_ >= kMaxPromptBlocks) {
    return Error{ErrorCode::out_of_range,
                 columns_.input_tokens.name + ": " + std::to_string(input_tokens) + " tokens are " +
                     std::to_string(kMaxPromptBlocks) + " blocks of --block-tokens or more"};
  }
  if (!start_s_) start_s_ = *time_s;
  return PromptRequest{.timestamp_ms = static_cast<std::uint64_t>(
                           std::max(0.0, std::round((*time_s - *start_s_) * 1000))),
                       .hash_ids = blocks_of(session_of(cells), input_tokens),
                       .input_tokens = input_tokens,
                       .output_tokens = static_cast<std::uint64_t>(*output)};
}

// A new session if the table names none.
std::uint64_t TableReader::session_of(std::span<const std::string> cells) {
  const bool is_named = columns_.session && columns_.session->place < cells.size() &&
                        !cells[columns_.session->place].empty();
  if (!is_named) return sessions_begun_++;
  const auto [known, is_new] =
      sessions_.try_emplace(cells[columns_.session->place], sessions_begun_);
  if (is_new) ++sessions_begun_;
  return known->second;
}

std::vector<std::uint64_t> TableReader::blocks_of(std::uint64_t session,
                                                  std::uint64_t input_tokens) const {
  std::vector<std::uint64_t> blocks(input_tokens / block_tokens_);
  const std::uint64_t first = mix((session + 1) * kGolden);
  for (std::size_t i = 0; i < blocks.size(); ++i) blocks[i] = mix(first + i);
  // The rest is another block once the session has continued.
  if (input_tokens % block_tokens_ != 0) {
    blocks.push_back(mix(mix(first + blocks.size()) + input_tokens));
  }
  return blocks;
}

}  // namespace cairn::replay
