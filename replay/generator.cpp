#include "replay/generator.hpp"

#include <algorithm>
#include <utility>

#include "replay/agent_sessions.hpp"
#include "replay/mix.hpp"

namespace cairn::replay {
namespace {

// Sizes in blocks of 512 tokens, based on the conversation and tool-use traces of public data:
// prompts of a few thousand tokens with a large shared part.
constexpr std::uint64_t kSystemPrompts = 6;
constexpr std::uint64_t kConversationsAtOnce = 48;
constexpr std::uint64_t kWorkersAtOnce = 24;
// The longest time between two requests; half of it on average.
constexpr std::uint64_t kMaxGapMs = 100;

}  // namespace

std::optional<GeneratorKind> generator_kind_from(std::string_view name) {
  if (name == "chat") return GeneratorKind::chat;
  if (name == "agents") return GeneratorKind::agents;
  if (name == "mixed") return GeneratorKind::mixed;
  return std::nullopt;
}

std::unique_ptr<Workload> generated(const GeneratorConfig& config) {
  if (config.kind == GeneratorKind::agents) {
    return std::make_unique<AgentSessions>(
        AgentSessions::Config{.requests = config.requests, .seed = config.seed});
  }
  return std::make_unique<Generator>(config);
}

Generator::Generator(const GeneratorConfig& config) : config_(config), state_(mix(config.seed)) {
  for (std::uint64_t i = 0; i < kSystemPrompts; ++i) {
    extend(system_prompts_.emplace_back(), draw(2, 12));
  }
}

std::uint64_t Generator::draw(std::uint64_t least, std::uint64_t most) {
  state_ += kGolden;
  return least + mix(state_) % (most - least + 1);
}

void Generator::extend(std::vector<std::uint64_t>& blocks, std::uint64_t count) {
  for (std::uint64_t i = 0; i < count; ++i) blocks.push_back(next_id_++);
}

void Generator::start_conversation() {
  // The lower of two draws: the first prompts are the popular ones.
  const std::uint64_t prompt = std::min(draw(0, kSystemPrompts - 1), draw(0, kSystemPrompts - 1));
  conversations_.push_back({system_prompts_[prompt], draw(1, 12), draw(1, 5)});
}

void Generator::start_task() {
  std::vector<std::uint64_t> context = system_prompts_[draw(0, kSystemPrompts - 1)];
  extend(context, draw(8, 32));
  const std::uint64_t workers = draw(3, 8);
  for (std::uint64_t i = 0; i < workers; ++i) workers_.push_back({context, draw(2, 8), draw(1, 3)});
}

PromptRequest Generator::take_turn(std::vector<Thread>& threads) {
  const std::size_t chosen = draw(0, threads.size() - 1);
  Thread& thread = threads[chosen];
  extend(thread.blocks, thread.blocks_a_turn);
  PromptRequest request{.timestamp_ms = now_ms_, .hash_ids = thread.blocks};
  if (--thread.turns_left == 0) {
    std::swap(thread, threads.back());
    threads.pop_back();
  }
  return request;
}

Result<std::optional<PromptRequest>> Generator::next() {
  if (made_ == config_.requests) return std::optional<PromptRequest>();
  ++made_;
  now_ms_ += draw(0, kMaxGapMs);
  const bool chat = config_.kind == GeneratorKind::chat ||
                    (config_.kind == GeneratorKind::mixed && draw(0, 1) == 0);
  if (chat) {
    while (conversations_.size() < kConversationsAtOnce) start_conversation();
    return std::optional(take_turn(conversations_));
  }
  while (workers_.size() < kWorkersAtOnce) start_task();
  return std::optional(take_turn(workers_));
}

double Generator::fraction_done() const {
  if (config_.requests == 0) return 1;
  return static_cast<double>(made_) / static_cast<double>(config_.requests);
}

std::string Generator::name() const {
  const std::string word = config_.kind == GeneratorKind::chat ? "chat-" : "mixed-";
  return word + std::to_string(config_.seed);
}

}  // namespace cairn::replay
