#include "replay/action_sender.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "base/hex.hpp"
#include "client/http_wire.hpp"

namespace cairn::replay {
namespace {

using nlohmann::json;

constexpr std::uint64_t kMaxLengthMs = 86'400'000;  // the server's limit

}  // namespace

bool PinBook::add(std::uint64_t number, const std::string& pin) {
  const MutexLock lock(mutex_);
  if (ended_.erase(number) > 0) return false;
  pins_[number] = pin;
  return true;
}

std::optional<std::string> PinBook::take(std::uint64_t number) {
  const MutexLock lock(mutex_);
  const auto pin = pins_.find(number);
  if (pin == pins_.end()) {
    ended_.insert(number);
    return std::nullopt;
  }
  std::optional<std::string> name = std::move(pin->second);
  pins_.erase(pin);
  return name;
}

std::uint64_t ActionSender::scaled_ms(std::uint64_t length_ms) const {
  const double real = static_cast<double>(length_ms) / (config_.speed > 0 ? config_.speed : 1.0);
  return static_cast<std::uint64_t>(std::clamp(real, 1.0, static_cast<double>(kMaxLengthMs)));
}

void ActionSender::count(AgentAction::Type type, const std::string& outcome) {
  ++connection_.tally().actions[std::string(to_string(type))][outcome];
}

void ActionSender::send(const AgentAction& action, const PromptRequest& request) {
  if (action.type == AgentAction::Type::unpin) return unpin(action);
  const std::vector<std::uint64_t>& ids =
      action.hash_ids == nullptr ? request.hash_ids : *action.hash_ids;
  json keys = json::array();
  for (const std::uint64_t id : ids) keys.push_back(to_hex(keys_.key_of(id)));
  json body = {{"type", to_string(action.type)}, {"target", {{"keys", std::move(keys)}}}};
  switch (action.type) {
    case AgentAction::Type::pin:
      body["ttl_ms"] = scaled_ms(action.length_ms);
      break;
    case AgentAction::Type::retain:
      body["ttl_ms"] = std::clamp<std::uint64_t>(action.length_ms, 1, kMaxLengthMs);
      break;
    case AgentAction::Type::prefetch:
      body["deadline_ms"] = scaled_ms(action.length_ms);
      break;
    case AgentAction::Type::demote:
    case AgentAction::Type::unpin:
      break;
  }
  const std::string target = "/v1/caches/" + client::percent_encoded(config_.cache) + "/actions";
  const json actions = {{"actions", json::array({std::move(body)})}};
  StepCalls& calls = connection_.calls();
  auto answer =
      calls.tried(Step::action, [&] { return connection_.client().call("POST", target, actions); });
  if (!answer) return calls.failed(Step::action, answer.error());
  struct Result {
    std::string outcome;
    std::string pin;  // empty: none
  };
  const auto result = client::guarded([&] {
    const json& first = answer->at("results").at(0);
    return Result{first.at("outcome").get<std::string>(), first.value("pin", std::string())};
  });
  if (!result) return calls.failed(Step::action, result.error());
  count(action.type, result->outcome);
  if (!result->pin.empty() && !pins_.add(action.pin, result->pin)) end(result->pin);
}

// A pin may have ended by itself, and there is none if no block was stored or no room was left.
void ActionSender::unpin(const AgentAction& action) {
  const auto pin = pins_.take(action.pin);
  if (!pin) return count(action.type, "missing");
  end(*pin);
}

void ActionSender::end(const std::string& pin) {
  StepCalls& calls = connection_.calls();
  const auto ended = calls.tried(Step::action, [&] {
    return connection_.client().call("DELETE", "/v1/pins/" + client::percent_encoded(pin));
  });
  if (!ended && ended.error().status != 404) return calls.failed(Step::action, ended.error());
  count(AgentAction::Type::unpin, ended ? "accepted" : "missing");
}

}  // namespace cairn::replay
