#include "replay/step_calls.hpp"

#include <algorithm>

namespace cairn::replay {

void StepCalls::failed(Step step, const client::ClientError& error) {
  std::string what(to_string(step));
  if (error.status != 0) what.append(" ").append(std::to_string(error.status));
  what.append(" ").append(error.code);
  ++tally_.errors[what];
  if (error.status == 0 && error.code != client::kBadAnswer) server_answers_ = false;
  report(what + ": " + error.detail);
}

void StepCalls::loaded(const PromptRequest& request, const Loaded& loaded) {
  if (!config_.engine) return;
  const EngineModel& engine = *config_.engine;
  const std::uint64_t asked =
      request.input_tokens > 0 ? request.input_tokens : request.hash_ids.size() * engine.key_tokens;
  const std::uint64_t found = std::min(asked, loaded.keys * engine.key_tokens);
  const double virtual_us = engine.token_us * static_cast<double>(asked - found) +
                            engine.block_us * static_cast<double>(loaded.blocks);
  tally_.add_engine_time({.real_us = static_cast<float>(spent_.count()) / 1000.0F,
                          .virtual_us = static_cast<float>(virtual_us)});
}

}  // namespace cairn::replay
