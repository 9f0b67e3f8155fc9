#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "base/mutex.hpp"
#include "client/cache_client.hpp"
#include "replay/replay_blocks.hpp"
#include "replay/step_calls.hpp"
#include "replay/workload.hpp"

namespace cairn::replay {

// The server's names of the pins of a replay, by number. Connections share it: one ends what
// another has begun. Thread-safe.
class PinBook {
 public:
  // Returns false if its end has come already: a faster connection has had the next turn.
  bool add(std::uint64_t number, const std::string& pin);
  // nullopt if the server did not pin anything, or has not yet.
  std::optional<std::string> take(std::uint64_t number);

 private:
  Mutex mutex_;
  std::map<std::uint64_t, std::string> pins_ CAIRN_GUARDED_BY(mutex_);
  std::set<std::uint64_t> ended_ CAIRN_GUARDED_BY(mutex_);  // without a pin
};

// Sends the actions of a workload on one connection, and counts what became of them. For one thread
// at a time.
class ActionSender {
 public:
  struct Config {
    std::string cache;
    // Of the trace. The lengths of pins and deadlines shrink with it; those of hints and retains
    // do not, because their order would be lost.
    double speed = 0;
  };
  // Borrows all but the configuration.
  ActionSender(PromptRunner& connection, const KeyMaker& keys, PinBook& pins, Config config)
      : connection_(connection), keys_(keys), pins_(pins), config_(std::move(config)) {}

  // `request`: the one that the action comes before or after.
  void send(const AgentAction& action, const PromptRequest& request);

 private:
  void unpin(const AgentAction& action);
  void end(const std::string& pin);
  std::uint64_t scaled_ms(std::uint64_t length_ms) const;
  void count(AgentAction::Type type, const std::string& outcome);

  PromptRunner& connection_;
  const KeyMaker& keys_;
  PinBook& pins_;
  const Config config_;
};

}  // namespace cairn::replay
