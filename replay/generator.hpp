#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "replay/workload.hpp"

namespace cairn::replay {

// chat: conversations on a few system prompts that grow turn by turn. agents: see AgentSessions.
// mixed: conversations as of chat, and tasks whose workers start from a common context and take
// several steps each.
enum class GeneratorKind : std::uint8_t { chat, agents, mixed };

std::optional<GeneratorKind> generator_kind_from(std::string_view name);

struct GeneratorConfig {
  GeneratorKind kind = GeneratorKind::mixed;
  std::uint64_t requests = 2000;
  std::uint64_t seed = 1;
};

// The workload of the configuration, which always has the same requests.
std::unique_ptr<Workload> generated(const GeneratorConfig& config);

// The kinds chat and mixed.
class Generator final : public Workload {
 public:
  explicit Generator(const GeneratorConfig& config);

  Result<std::optional<PromptRequest>> next() override;
  double fraction_done() const override;
  std::string name() const override;

 private:
  // A prompt that is repeated, longer each time, until it has had its turns.
  struct Thread {
    std::vector<std::uint64_t> blocks;
    std::uint64_t turns_left = 0;
    std::uint64_t blocks_a_turn = 1;
  };

  std::uint64_t draw(std::uint64_t least, std::uint64_t most);
  void extend(std::vector<std::uint64_t>& blocks, std::uint64_t count);
  void start_conversation();
  void start_task();
  PromptRequest take_turn(std::vector<Thread>& threads);

  GeneratorConfig config_;
  std::uint64_t state_;
  std::uint64_t made_ = 0;
  std::uint64_t next_id_ = 0;
  std::uint64_t now_ms_ = 0;
  std::vector<std::vector<std::uint64_t>> system_prompts_;
  std::vector<Thread> conversations_;
  std::vector<Thread> workers_;
};

}  // namespace cairn::replay
