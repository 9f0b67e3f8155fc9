#include "replay/agent_sessions.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <span>
#include <utility>

#include "replay/mix.hpp"

namespace cairn::replay {
namespace {

// Sources:
//   AgentX    SemiAnalysis, "AgentX", InferenceX v3, 24 August 2026: 393 recorded sessions of
//             Claude Code. inferencex.semianalysis.com/blog/agentx-inferencexv3-does-cuda-moat
//   vLLM      "Optimizing Real-World Agentic Serving with vLLM and AgentX", 8 September 2026, on
//             the same sessions. vllm.ai/blog/2026-09-08-vllm-agentx
//   TraceLab  Zhu and others, "TraceLab: Characterizing Coding Agent Workloads for LLM Serving",
//             arXiv 2606.30560, June 2026: 4,300 sessions of Claude Code and Codex.
// Figures without a source are chosen so that the ones with a source come out.

// vLLM: 43 turns in the median. The width is chosen.
constexpr double kTurns = 43;
constexpr double kTurnsSigma = 0.9;
constexpr double kMaxTurns = 500;

// AgentX: 444 tokens of output in the median of requests. TraceLab: mostly short, with a long tail.
constexpr double kOutputTokens = 444;
constexpr double kOutputSigma = 1.0;
constexpr double kMaxOutputTokens = 32'000;

// A tool's result. With the two figures below, half of the requests of sessions have 142,000
// tokens of input and more (AgentX), and 96% of all input was seen before (vLLM, TraceLab).
// TraceLab: 875 tokens are appended in the median, and most appended tokens come in few large
// steps.
constexpr double kToolTokens = 2'000;
constexpr double kToolSigma = 1.3;
constexpr double kMinToolTokens = 50;
constexpr double kMaxToolTokens = 50'000;
// AgentX: contexts of up to a million tokens, 256,000 in its smaller set. Beyond this one, a
// session goes on with a summary of itself.
constexpr std::uint64_t kMaxInputTokens = 400'000;
constexpr double kSummaryTokens = 8'000;
constexpr double kSummarySigma = 0.5;

// A recorded session of Claude Code sent 15,000 tokens of system prompt and tools with each call,
// and the same to its subagents (hpfreilabs.com/blog/anatomy-of-claude-code-session); leaner agents
// send fewer. Kinds of agents (reviewer, planner, explorer) differ in the instructions that follow
// it.
constexpr std::uint64_t kAgentPrompts = 3;
constexpr std::uint64_t kAgentKinds = 9;
// Instructions and files that all conversations of a session begin with.
constexpr double kProjectTokens = 8'192;
constexpr double kProjectSigma = 0.7;
constexpr double kMinProjectTokens = 1'024;
constexpr double kMaxProjectTokens = 32'768;
constexpr double kTaskTokens = 2'000;
constexpr double kTaskSigma = 1.0;

// AgentX: 3.84 s between turns in the median. TraceLab: the tail of waits for tools and people goes
// on beyond an hour, and a prefix is mostly gone by then.
constexpr double kPauseMs = 3'840;
constexpr double kPauseSigma = 2.0;

// AgentX: 44% of sessions have subagents, four of them in the median. Their turns are chosen.
constexpr double kShareWithSubagents = 0.44;
constexpr std::uint64_t kMaxSubagents = 7;  // 1 to 7: four in the median
constexpr double kSubagentTurns = 10;
constexpr double kSubagentTurnsSigma = 0.7;
constexpr std::uint64_t kSubagentGapMs = 500;  // between the starts of two

// AgentX replays with a fixed number of users, of which one to some hundreds were measured.
constexpr std::uint64_t kUsers = 32;
constexpr std::uint64_t kFirstMinuteMs = 60'000;  // in which the users begin

}  // namespace

AgentSessions::AgentSessions(const Config& config) : config_(config), state_(mix(config.seed)) {
  for (std::uint64_t i = 0; i < kAgentPrompts; ++i) {
    Conversation prompt{.tokens = kSystemTokens};
    fill(prompt);
    system_prompts_.push_back(std::move(prompt.blocks));
  }
  for (std::uint64_t i = 0; i < kUsers; ++i) start_session(draw(0, kFirstMinuteMs));
}

std::uint64_t AgentSessions::draw(std::uint64_t least, std::uint64_t most) {
  state_ += kGolden;
  return least + mix(state_) % (most - least + 1);
}

double AgentSessions::unit() {
  state_ += kGolden;
  return static_cast<double>((mix(state_) >> 11U) + 1) * 0x1p-53;
}

std::uint64_t AgentSessions::draw(const Spread& spread) {
  // Box and Muller's normal deviate.
  const double radius = std::sqrt(-2 * std::log(unit()));
  const double deviate = radius * std::cos(2 * std::numbers::pi * unit());
  const double value = spread.median * std::exp(spread.sigma * deviate);
  return static_cast<std::uint64_t>(std::clamp(value, spread.least, spread.most));
}

// A block has an id once it is full.
void AgentSessions::fill(Conversation& conversation) {
  while (conversation.blocks.size() < conversation.tokens / kBlockTokens) {
    conversation.blocks.push_back(next_id_++);
  }
}

void AgentSessions::add(Conversation conversation, std::uint64_t due_ms) {
  conversations_.emplace(++last_number_, std::move(conversation));
  due_.emplace(due_ms, last_number_);
}

void AgentSessions::start_session(std::uint64_t due_ms) {
  // The lower of two draws: the first kinds are the popular ones.
  const std::uint64_t kind = std::min(draw(0, kAgentKinds - 1), draw(0, kAgentKinds - 1));
  const std::uint64_t project = draw({.median = kProjectTokens,
                                      .sigma = kProjectSigma,
                                      .least = kMinProjectTokens,
                                      .most = kMaxProjectTokens});
  Conversation session{.blocks = system_prompts_[kind % kAgentPrompts],
                       .tokens = kSystemTokens + project / kBlockTokens * kBlockTokens};
  fill(session);
  session.start_blocks = session.blocks.size();
  session.appended_tokens = draw({.median = kTaskTokens,
                                  .sigma = kTaskSigma,
                                  .least = kMinToolTokens,
                                  .most = kMaxToolTokens});
  session.turns_left =
      draw({.median = kTurns, .sigma = kTurnsSigma, .least = 1, .most = kMaxTurns});
  if (unit() <= kShareWithSubagents) {
    session.subagents = draw(1, kMaxSubagents);
    session.turns_left_at_branch = draw(0, session.turns_left - 1);
  }
  add(std::move(session), due_ms);
}

void AgentSessions::start_subagents(std::uint64_t number, std::uint64_t due_ms) {
  Conversation& session = conversations_.at(number);
  session.away = session.subagents;
  const std::span start = std::span(session.blocks).first(session.start_blocks);
  for (std::uint64_t i = 0; i < session.away; ++i) {
    Conversation subagent{.blocks = {start.begin(), start.end()},
                          .start_blocks = start.size(),
                          .tokens = start.size() * kBlockTokens,
                          .session = number};
    subagent.appended_tokens = draw({.median = kTaskTokens,
                                     .sigma = kTaskSigma,
                                     .least = kMinToolTokens,
                                     .most = kMaxToolTokens});
    subagent.turns_left = draw(
        {.median = kSubagentTurns, .sigma = kSubagentTurnsSigma, .least = 1, .most = kMaxTurns});
    add(std::move(subagent), due_ms + i * kSubagentGapMs);
  }
}

void AgentSessions::go_on(std::uint64_t number, std::uint64_t answered_ms,
                          std::uint64_t output_tokens) {
  const std::uint64_t resumes_ms = answered_ms + draw({.median = kPauseMs,
                                                       .sigma = kPauseSigma,
                                                       .least = static_cast<double>(kMinPauseMs),
                                                       .most = static_cast<double>(kMaxPauseMs)});
  Conversation& conversation = conversations_.at(number);
  --conversation.turns_left;
  const bool branches = conversation.subagents > 0 && conversation.away == 0 &&
                        conversation.turns_left == conversation.turns_left_at_branch;
  if (branches) {
    // The session's last turn reads what they found.
    conversation.turns_left = std::max<std::uint64_t>(conversation.turns_left, 1);
    conversation.appended_tokens = output_tokens;
    start_subagents(number, answered_ms);
    conversation.subagents = 0;
    return;
  }
  if (conversation.turns_left > 0) {
    conversation.appended_tokens = output_tokens + draw({.median = kToolTokens,
                                                         .sigma = kToolSigma,
                                                         .least = kMinToolTokens,
                                                         .most = kMaxToolTokens});
    due_.emplace(resumes_ms, number);
    return;
  }
  if (conversation.session == 0) {
    start_session(resumes_ms);
  } else {
    Conversation& session = conversations_.at(conversation.session);
    session.appended_tokens += output_tokens;
    if (--session.away == 0) due_.emplace(answered_ms, conversation.session);
  }
  conversations_.erase(number);
}

Result<std::optional<PromptRequest>> AgentSessions::next() {
  if (made_ == config_.requests) return std::optional<PromptRequest>();
  ++made_;
  const auto [now_ms, number] = due_.top();
  due_.pop();
  Conversation& conversation = conversations_.at(number);
  conversation.tokens += conversation.appended_tokens;
  if (conversation.tokens > kMaxInputTokens) {
    conversation.blocks.resize(conversation.start_blocks);
    conversation.tokens = conversation.start_blocks * kBlockTokens + draw({.median = kSummaryTokens,
                                                                           .sigma = kSummarySigma,
                                                                           .least = kMinToolTokens,
                                                                           .most = kMaxToolTokens});
  }
  fill(conversation);
  const std::uint64_t output_tokens =
      draw({.median = kOutputTokens, .sigma = kOutputSigma, .least = 1, .most = kMaxOutputTokens});
  PromptRequest request{.timestamp_ms = now_ms,
                        .hash_ids = conversation.blocks,
                        .input_tokens = conversation.tokens,
                        .output_tokens = output_tokens,
                        .conversation = number};
  go_on(number, now_ms + output_tokens * kTokenMs, output_tokens);
  return std::optional(std::move(request));
}

double AgentSessions::fraction_done() const {
  if (config_.requests == 0) return 1;
  return static_cast<double>(made_) / static_cast<double>(config_.requests);
}

std::string AgentSessions::name() const { return "agents-" + std::to_string(config_.seed); }

}  // namespace cairn::replay
