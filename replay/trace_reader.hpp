#pragma once

#include <cstddef>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "replay/workload.hpp"

namespace cairn::replay {

// A trace in JSON lines: `timestamp` in ms, `input_length`, `output_length`, `hash_ids`. Read line
// by line, so that a trace may be larger than memory. Empty lines are passed over; a broken one is
// an error that names its number.
class TraceReader final : public Workload {
 public:
  // Far beyond the longest line of a real trace (374 blocks are 3 KB): more is not a trace.
  static constexpr std::size_t kMaxLineBytes = std::size_t{4} << 20U;

  static Result<std::unique_ptr<TraceReader>> open(const std::string& path);

  Result<std::optional<PromptRequest>> next() override;
  double fraction_done() const override;
  // The file's name without its folder: the keys stay when the file moves.
  std::string name() const override { return name_; }

 private:
  TraceReader(std::ifstream file, const std::string& path, std::uintmax_t file_bytes);

  std::ifstream file_;
  std::string path_;
  std::string name_;
  std::uintmax_t file_bytes_;
  std::uintmax_t read_bytes_ = 0;
  std::uint64_t line_number_ = 0;
  std::vector<char> line_;
};

}  // namespace cairn::replay
