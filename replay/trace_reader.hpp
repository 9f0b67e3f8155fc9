#pragma once

#include <memory>
#include <string>
#include <utility>

#include "replay/line_reader.hpp"
#include "replay/workload.hpp"

namespace cairn::replay {

// A trace in JSON lines: `timestamp` in ms, `input_length`, `output_length`, `hash_ids`. An error
// in a line names its number.
class TraceReader final : public Workload {
 public:
  static Result<std::unique_ptr<TraceReader>> open(const std::string& path);

  Result<std::optional<PromptRequest>> next() override;
  double fraction_done() const override { return lines_.fraction_done(); }
  std::string name() const override { return lines_.name(); }

 private:
  explicit TraceReader(LineReader lines) : lines_(std::move(lines)) {}

  LineReader lines_;
};

}  // namespace cairn::replay
