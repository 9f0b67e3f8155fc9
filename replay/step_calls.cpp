#include "replay/step_calls.hpp"

namespace cairn::replay {

void StepCalls::failed(Step step, const client::ClientError& error) {
  std::string what(to_string(step));
  if (error.status != 0) what.append(" ").append(std::to_string(error.status));
  what.append(" ").append(error.code);
  ++tally_.errors[what];
  if (error.status == 0 && error.code != client::kBadAnswer) server_answers_ = false;
  report(what + ": " + error.detail);
}

}  // namespace cairn::replay
