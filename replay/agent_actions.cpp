#include "replay/agent_actions.hpp"

#include <algorithm>
#include <optional>
#include <unordered_map>
#include <utility>

#include "base/assert.hpp"
#include "replay/mix.hpp"
#include "replay/read_workload.hpp"

namespace cairn::replay {
namespace {

// A framework learns that a tool is nearly done some seconds before, or halfway through a short
// one.
constexpr std::uint64_t kFetchAheadMs = 5'000;
// A pin lasts this long unless its sender says otherwise. A longer pause is rather one of people.
constexpr std::uint64_t kShortPauseMs = 300'000;
// A framework does not know exactly how long a tool takes. It ends the pin at the next turn.
constexpr std::uint64_t kPinSlackMs = 60'000;
// The factor of a wrong time.
constexpr std::uint64_t kWrongFactor = 10;

using BlockList = std::shared_ptr<const std::vector<std::uint64_t>>;
constexpr std::size_t kNone = ~std::size_t{0};

BlockList list_of(std::vector<std::uint64_t> blocks) {
  return std::make_shared<const std::vector<std::uint64_t>>(std::move(blocks));
}

// Which requests are of one conversation.
class Conversations {
 public:
  explicit Conversations(const std::vector<PromptRequest>& requests) : requests_(requests) {
    find_next_turns();
    number();
    find_owners();
  }

  // The conversation's next request; kNone after its last.
  std::size_t next_turn(std::size_t request) const { return next_turns_[request]; }
  // The latest request of another conversation before it; kNone if there is none.
  std::size_t other(std::size_t request) const { return others_[request]; }
  // The request's blocks from the first one that no other conversation has.
  std::vector<std::uint64_t> own_blocks(std::size_t request) const {
    const std::vector<std::uint64_t>& blocks = requests_[request].hash_ids;
    const auto first = std::ranges::find_if(
        blocks, [&](std::uint64_t block) { return owners_.at(block) == numbers_[request]; });
    return {first, blocks.end()};
  }

 private:
  static constexpr std::uint64_t kSeveral = ~std::uint64_t{0};

  void find_next_turns() {
    next_turns_.assign(requests_.size(), kNone);
    std::unordered_map<std::uint64_t, std::size_t> of_conversation;
    std::unordered_map<std::uint64_t, std::size_t> of_block;
    for (std::size_t i = requests_.size(); i-- > 0;) {
      const PromptRequest& request = requests_[i];
      if (request.conversation != 0) {
        const auto [found, is_last] = of_conversation.try_emplace(request.conversation, i);
        if (!is_last) next_turns_[i] = std::exchange(found->second, i);
        continue;
      }
      if (request.hash_ids.empty()) continue;
      const std::uint64_t middle = request.hash_ids[(request.hash_ids.size() - 1) / 2];
      if (const auto next = of_block.find(middle); next != of_block.end()) {
        next_turns_[i] = next->second;
      }
      for (const std::uint64_t block : request.hash_ids) of_block[block] = i;
    }
  }

  void number() {
    numbers_.assign(requests_.size(), 0);
    others_.assign(requests_.size(), kNone);
    std::size_t other = kNone;
    for (std::size_t i = 0; i < requests_.size(); ++i) {
      if (numbers_[i] == 0) numbers_[i] = i + 1;
      const std::size_t next = next_turns_[i];
      if (next != kNone && numbers_[next] == 0) numbers_[next] = numbers_[i];
      if (i > 0 && numbers_[i - 1] != numbers_[i]) other = i - 1;
      others_[i] = other;
    }
  }

  void find_owners() {
    for (std::size_t i = 0; i < requests_.size(); ++i) {
      for (const std::uint64_t block : requests_[i].hash_ids) {
        const auto [owner, is_first] = owners_.try_emplace(block, numbers_[i]);
        if (!is_first && owner->second != numbers_[i]) owner->second = kSeveral;
      }
    }
  }

  const std::vector<PromptRequest>& requests_;
  std::vector<std::size_t> next_turns_;
  std::vector<std::uint64_t> numbers_;  // of each request's conversation
  std::vector<std::size_t> others_;
  std::unordered_map<std::uint64_t, std::uint64_t> owners_;  // of each block: one, or kSeveral
};

// Adds the actions of one workload.
class Planner {
 public:
  Planner(std::vector<PromptRequest>& requests, const ActionOptions& options)
      : requests_(requests), options_(options), conversations_(requests) {}

  void plan() {
    for (std::size_t i = 0; i < requests_.size(); ++i) {
      const std::size_t next = conversations_.next_turn(i);
      if (next == kNone) continue;
      const Pause pause{.request = i,
                        .next = next,
                        .length_ms = requests_[next].timestamp_ms - requests_[i].timestamp_ms};
      if (chance(4 * i) < options_.paused) at_pause(pause);
      if (chance(4 * i + 1) < options_.prefetch) prefetch(pause);
    }
    for (PromptRequest& request : requests_) {
      std::ranges::stable_sort(request.before, {}, &AgentAction::timestamp_ms);
    }
  }

 private:
  struct Pause {
    std::size_t request = 0;
    std::size_t next = 0;  // the conversation's next request
    std::uint64_t length_ms = 0;

    // Half of the wrong actions name another conversation's blocks.
    bool lies_about_blocks() const { return (mix(~request) & 1U) == 0; }
  };

  std::uint64_t at_ms(const Pause& pause) const { return requests_[pause.request].timestamp_ms; }

  // The blocks of a wrong action; null if it is the time that is wrong.
  BlockList wrong_blocks(const Pause& pause) const {
    const std::size_t other = conversations_.other(pause.request);
    if (!pause.lies_about_blocks() || other == kNone) return nullptr;
    return list_of(requests_[other].hash_ids);
  }

  // Adds an action before the first request that comes after it.
  void add_before(const Pause& pause, AgentAction action) {
    const auto first = requests_.begin() + static_cast<std::ptrdiff_t>(pause.request) + 1;
    const auto last = requests_.begin() + static_cast<std::ptrdiff_t>(pause.next);
    const auto request = std::ranges::lower_bound(first, last, action.timestamp_ms, {},
                                                  &PromptRequest::timestamp_ms);
    request->before.push_back(std::move(action));
  }

  void at_pause(const Pause& pause) {
    using enum ActionOptions::AtPause;
    const bool is_right = chance(4 * pause.request + 2) < options_.right;
    switch (options_.at_pause) {
      case none:
        return;
      case fitting:
        return pause.length_ms <= kShortPauseMs ? this->pin(pause, is_right)
                                                : this->demote(pause, is_right);
      case pin:
        return this->pin(pause, is_right);
      case demote:
        return this->demote(pause, is_right);
      case retain:
        return this->retain(pause, is_right);
      case within:
        requests_[pause.request].hint = {.kind = ReuseHint::Kind::within,
                                         .within_ms = told_length(pause, is_right)};
        return;
    }
    invariant_broken("ActionOptions::AtPause", "a value outside the enumeration");
  }

  // As long as the pause, or a wrong time.
  static std::uint64_t told_length(const Pause& pause, bool is_right) {
    if (is_right) return pause.length_ms;
    return pause.lies_about_blocks() ? pause.length_ms * kWrongFactor
                                     : pause.length_ms / kWrongFactor;
  }

  void pin(const Pause& pause, bool is_right) {
    const std::uint64_t number = ++last_pin_;
    BlockList blocks = is_right ? nullptr : wrong_blocks(pause);
    const bool ends_early = !is_right && blocks == nullptr;
    requests_[pause.request].after.push_back({.type = AgentAction::Type::pin,
                                              .timestamp_ms = at_ms(pause),
                                              .length_ms = 2 * pause.length_ms + kPinSlackMs,
                                              .pin = number,
                                              .hash_ids = std::move(blocks)});
    AgentAction end{.type = AgentAction::Type::unpin, .pin = number};
    if (ends_early) {
      end.timestamp_ms = at_ms(pause) + pause.length_ms / kWrongFactor;
      add_before(pause, std::move(end));
    } else {
      end.timestamp_ms = requests_[pause.next].timestamp_ms;
      requests_[pause.next].after.push_back(std::move(end));
    }
  }

  void demote(const Pause& pause, bool is_right) {
    std::size_t whose = pause.request;
    if (!is_right) whose = conversations_.other(pause.request);
    if (whose == kNone) return;
    std::vector<std::uint64_t> blocks = conversations_.own_blocks(whose);
    if (blocks.empty()) return;
    requests_[pause.request].after.push_back({.type = AgentAction::Type::demote,
                                              .timestamp_ms = at_ms(pause),
                                              .hash_ids = list_of(std::move(blocks))});
  }

  void retain(const Pause& pause, bool is_right) {
    BlockList blocks = is_right ? nullptr : wrong_blocks(pause);
    const bool is_right_time = is_right || blocks != nullptr;
    requests_[pause.request].after.push_back(
        {.type = AgentAction::Type::retain,
         .timestamp_ms = at_ms(pause),
         .length_ms = is_right_time ? pause.length_ms : pause.length_ms / kWrongFactor,
         .hash_ids = std::move(blocks)});
  }

  // At a wrong time, it comes as soon as the pause begins.
  void prefetch(const Pause& pause) {
    const bool is_right = chance(4 * pause.request + 3) < options_.right;
    BlockList blocks = is_right ? nullptr : wrong_blocks(pause);
    const bool is_right_time = is_right || blocks != nullptr;
    if (blocks == nullptr) blocks = list_of(requests_[pause.request].hash_ids);
    const std::uint64_t ahead_ms =
        is_right_time ? std::min(kFetchAheadMs, pause.length_ms / 2) : pause.length_ms;
    add_before(pause, {.type = AgentAction::Type::prefetch,
                       .timestamp_ms = at_ms(pause) + pause.length_ms - ahead_ms,
                       .length_ms = ahead_ms,
                       .hash_ids = std::move(blocks)});
  }

  std::vector<PromptRequest>& requests_;
  const ActionOptions& options_;
  const Conversations conversations_;
  std::uint64_t last_pin_ = 0;
};

}  // namespace

std::string_view to_string(AgentAction::Type type) {
  using enum AgentAction::Type;
  switch (type) {
    case pin:
      return "pin";
    case unpin:
      return "unpin";
    case retain:
      return "retain";
    case demote:
      return "demote";
    case prefetch:
      return "prefetch";
  }
  invariant_broken("AgentAction::Type", "a value outside the enumeration");
}

void add_actions(std::vector<PromptRequest>& requests, const ActionOptions& actions) {
  Planner(requests, actions).plan();
}

Result<std::unique_ptr<Workload>> with_actions(Workload& workload, std::uint64_t limit,
                                               const ActionOptions& actions) {
  auto requests = read_all(workload, limit);
  if (!requests) return std::move(requests).error();
  add_actions(*requests, actions);
  return workload_from(std::move(*requests), workload.name());
}

}  // namespace cairn::replay
