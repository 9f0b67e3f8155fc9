#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.hpp"
#include "blockmgr/eviction/reuse_hint.hpp"

namespace cairn::replay {

// One prompt: an id for each block, equal ids for equal prefixes.
struct PromptRequest {
  std::uint64_t timestamp_ms = 0;  // from the start of the trace
  std::vector<std::uint64_t> hash_ids = {};
  std::uint64_t input_tokens = 0;   // 0: not known
  std::uint64_t output_tokens = 0;  // the same
  ReuseHint hint = {};              // what its user says when it has ended
};

// Requests in the order of their time. One thread at a time.
class Workload {
 public:
  virtual ~Workload() = default;
  // The next request; nothing after the last.
  virtual Result<std::optional<PromptRequest>> next() = 0;
  // How much of it has been handed out, 0 to 1.
  virtual double fraction_done() const = 0;
  // What tells the keys of this workload from those of another.
  virtual std::string name() const = 0;
};

}  // namespace cairn::replay
