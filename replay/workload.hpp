#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"
#include "blockmgr/eviction/reuse_hint.hpp"

namespace cairn::replay {

// An action of an agent framework: it names blocks that the framework does not request now.
struct AgentAction {
  enum class Type : std::uint8_t { pin, unpin, retain, demote, prefetch };
  Type type = Type::pin;
  std::uint64_t timestamp_ms = 0;  // when it is sent, from the start of the trace
  std::uint64_t length_ms = 0;     // of a pin or retain; of a prefetch: until the blocks are needed
  std::uint64_t pin = 0;           // the number of the pin that it begins or ends
  // Its blocks; null: those of the request that it follows.
  std::shared_ptr<const std::vector<std::uint64_t>> hash_ids = {};
};
inline constexpr std::array kActionTypes = {AgentAction::Type::pin, AgentAction::Type::unpin,
                                            AgentAction::Type::retain, AgentAction::Type::demote,
                                            AgentAction::Type::prefetch};
std::string_view to_string(AgentAction::Type type);

// One prompt: one id per block, equal ids for equal prefixes.
struct PromptRequest {
  std::uint64_t timestamp_ms = 0;  // from the start of the trace
  std::vector<std::uint64_t> hash_ids = {};
  std::uint64_t input_tokens = 0;   // 0: unknown
  std::uint64_t output_tokens = 0;  // the same
  ReuseHint hint = {};              // its user's hint when it has ended
  std::uint64_t conversation = 0;   // a number that its conversation's requests share; 0: unknown
  std::vector<AgentAction> before = {};  // sent at their times, which are not after the request's
  std::vector<AgentAction> after = {};   // sent when the request has ended
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
