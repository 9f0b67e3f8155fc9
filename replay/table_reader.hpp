#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "replay/line_reader.hpp"
#include "replay/workload.hpp"

namespace cairn::replay {

// The names of the columns with a request's fields, in a table.
struct TableColumns {
  std::string timestamp;
  std::string input_tokens;
  std::string output_tokens;
  std::string session = {};  // empty: the table has none
};

// "timestamp=TIMESTAMP,input_tokens=ContextTokens,output_tokens=GeneratedTokens,session=Session
// ID": the last is optional. A name with a comma is in quotes.
Result<TableColumns> columns_from(const std::string& text);

// A trace as a comma-separated table whose first line names the columns, as Azure's and BurstGPT's
// are. A time is seconds, or a date and a time of day. Such tables have no block ids: a prompt
// begins with the previous one of its session, as far as that filled whole blocks, and shares
// nothing with other sessions. Without a session it shares nothing at all. An error in a line names
// its number and the column.
class TableReader final : public Workload {
 public:
  struct Options {
    std::string path;
    TableColumns columns;
    std::uint64_t block_tokens = 512;
  };
  static Result<std::unique_ptr<TableReader>> open(const Options& options);

  Result<std::optional<PromptRequest>> next() override;
  double fraction_done() const override { return lines_.fraction_done(); }
  std::string name() const override { return lines_.name(); }

 private:
  struct Column {
    std::string name;
    std::size_t place = 0;  // in a line
  };
  struct Columns {
    Column timestamp;
    Column input_tokens;
    Column output_tokens;
    std::optional<Column> session;
  };
  TableReader(LineReader lines, Columns columns, std::uint64_t block_tokens)
      : lines_(std::move(lines)), columns_(std::move(columns)), block_tokens_(block_tokens) {}
  Result<PromptRequest> request_of(std::span<const std::string> cells);
  std::uint64_t session_of(std::span<const std::string> cells);
  std::vector<std::uint64_t> blocks_of(std::uint64_t session, std::uint64_t input_tokens) const;

  LineReader lines_;
  Columns columns_;
  std::uint64_t block_tokens_;
  std::uint64_t sessions_begun_ = 0;
  std::unordered_map<std::string, std::uint64_t> sessions_;
  std::optional<double> start_s_;  // the first request's time
};

}  // namespace cairn::replay
