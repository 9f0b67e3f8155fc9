#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <queue>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "replay/workload.hpp"

namespace cairn::replay {

// Sessions of coding agents, as public traces of 2026 describe them: agent_sessions.cpp names the
// source of each figure. A fixed number of users each have one session after the other. A session
// begins with a system prompt and a list of tools that many sessions share, and with its project.
// It grows turn by turn; a tool runs between two turns. In some sessions, subagents branch off
// after the project, and the session goes on when the last of them has come back. The same seed
// always gives the same requests.
class AgentSessions final : public Workload {
 public:
  static constexpr std::uint64_t kBlockTokens = 512;
  static constexpr std::uint64_t kSystemTokens = 10'240;
  // A generated token takes this long, so the next tool begins that much later: 50 a second, the
  // speed at which InferenceX compares the cost of machines.
  static constexpr std::uint64_t kTokenMs = 20;
  static constexpr std::uint64_t kMinPauseMs = 1'000;
  static constexpr std::uint64_t kMaxPauseMs = 3'600'000;

  struct Config {
    std::uint64_t requests = 0;
    std::uint64_t seed = 0;
  };
  explicit AgentSessions(const Config& config);

  Result<std::optional<PromptRequest>> next() override;
  double fraction_done() const override;
  std::string name() const override;

 private:
  // A log-normal distribution, cut at both ends.
  struct Spread {
    double median = 0;
    double sigma = 0;
    double least = 0;
    double most = 0;
  };
  // A session, or one of its subagents.
  struct Conversation {
    std::vector<std::uint64_t> blocks = {};
    std::size_t start_blocks = 0;  // system prompt and project
    std::uint64_t tokens = 0;
    std::uint64_t appended_tokens = 0;  // since the last turn
    std::uint64_t turns_left = 0;
    std::uint64_t session = 0;               // whose subagent it is; 0: it is a session
    std::uint64_t subagents = 0;             // that branch off
    std::uint64_t turns_left_at_branch = 0;  // when they do
    std::uint64_t away = 0;                  // subagents that have not come back
  };

  std::uint64_t draw(std::uint64_t least, std::uint64_t most);
  double unit();  // above 0, up to 1
  std::uint64_t draw(const Spread& spread);
  void fill(Conversation& conversation);
  void add(Conversation conversation, std::uint64_t due_ms);
  void start_session(std::uint64_t due_ms);
  void start_subagents(std::uint64_t session, std::uint64_t due_ms);
  // The turn's output is complete at this time: plans the conversation's next turn, or its end.
  void go_on(std::uint64_t number, std::uint64_t answered_ms, std::uint64_t output_tokens);

  const Config config_;
  std::uint64_t state_;
  std::uint64_t made_ = 0;
  std::uint64_t next_id_ = 0;
  std::vector<std::vector<std::uint64_t>> system_prompts_;
  std::uint64_t last_number_ = 0;
  std::map<std::uint64_t, Conversation> conversations_;  // by number
  using Due = std::pair<std::uint64_t, std::uint64_t>;   // ms, and a conversation's number
  std::priority_queue<Due, std::vector<Due>, std::greater<>> due_;
};

}  // namespace cairn::replay
