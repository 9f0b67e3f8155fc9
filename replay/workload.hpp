#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.hpp"
#include "blockmgr/eviction/reuse_hint.hpp"

namespace cairn::replay {

// One prompt: one id per block, equal ids for equal prefixes.
struct PromptRequest {
  std::uint64_t timestamp_ms = 0;  // from the start of the trace
  std::vector<std::uint64_t> hash_ids = {};
  std::uint64_t input_tokens = 0;   // 0: unknown
  std::uint64_t output_tokens = 0;  // the same
  ReuseHint hint = {};              // its user's hint when it has ended
};

// Requests in the order of their time. For one thread at a time.
class Workload {
 public:
  virtual ~Workload() = default;
  // The next request; nullopt after the last.
  virtual Result<std::optional<PromptRequest>> next() = 0;
  // The share of it that has been returned, 0 to 1.
  virtual double fraction_done() const = 0;
  // Distinguishes the keys of this workload from those of another.
  virtual std::string name() const = 0;
};

}  // namespace cairn::replay
