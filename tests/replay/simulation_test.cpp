#include "replay/simulation.hpp"

#include <gmock/gmock.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>

#include "replay/oracle.hpp"
#include "replay/simulation_report.hpp"

namespace cairn::replay {
namespace {

using testing::HasSubstr;

SimulationOutcome simulated(const SimulationOptions& options, std::uint64_t limit = 0) {
  Generator workload({.kind = GeneratorKind::mixed, .requests = 1000, .seed = 3});
  auto outcome = simulate(options, workload, limit);
  EXPECT_TRUE(outcome);
  return *outcome;
}

TEST(Simulation, HasAHitRatePerPolicyAndCapacity) {
  const SimulationOutcome outcome = simulated({.capacities_blocks = {100, 1000, 1'000'000}});
  EXPECT_EQ(outcome.requests, 1000U);
  ASSERT_EQ(outcome.rows.size(), 4U);
  EXPECT_EQ(outcome.rows[0].name, "lru");
  EXPECT_EQ(outcome.rows[3].name, "optimum");
  // A cache that never evicts misses only the first use of each block.
  const double most =
      1 - static_cast<double>(outcome.different) / static_cast<double>(outcome.blocks);
  for (const auto& row : outcome.rows) {
    ASSERT_EQ(row.hit_rates.size(), 3U);
    EXPECT_NEAR(row.hit_rates[2], most, 1e-9) << row.name;
    for (std::size_t i = 0; i < 3; ++i) {
      EXPECT_GT(row.hit_rates[i], 0) << row.name;
      EXPECT_LE(row.hit_rates[i], outcome.rows[3].hit_rates[i]) << row.name;
    }
  }
}

// On generated traces too, the learning order is at most one point below LRU.
TEST(Simulation, NoOrderIsMuchWorseThanLru) {
  for (const auto kind : {GeneratorKind::chat, GeneratorKind::agents, GeneratorKind::mixed}) {
    const auto workload = generated({.kind = kind, .requests = 3000, .seed = 5});
    const auto outcome = simulate({.capacities_blocks = {300, 1000, 3000}}, *workload, 0);
    ASSERT_TRUE(outcome);
    for (std::size_t i = 0; i < 3; ++i) {
      EXPECT_GT(outcome->rows[3].hit_rates[i], outcome->rows[0].hit_rates[i] - 0.01)
          << static_cast<int>(kind) << " at " << outcome->capacities_blocks[i];
    }
  }
}

// A workload of the given requests.
class Given final : public Workload {
 public:
  explicit Given(std::vector<PromptRequest> requests) : requests_(std::move(requests)) {}
  Result<std::optional<PromptRequest>> next() override {
    if (next_ == requests_.size()) return std::optional<PromptRequest>();
    return std::optional(requests_[next_++]);
  }
  double fraction_done() const override { return 0; }
  std::string name() const override { return "given"; }

 private:
  std::vector<PromptRequest> requests_;
  std::size_t next_ = 0;
};

// A prompt of `blocks` blocks, which no other has.
PromptRequest prompt_of(std::uint64_t first, std::uint64_t blocks) {
  PromptRequest request;
  for (std::uint64_t i = 0; i < blocks; ++i) request.hash_ids.push_back(first + i);
  return request;
}

// A prompt of ten blocks, 200 other blocks, and the prompt again, in a cache of 40.
std::uint64_t hits_after_a_flood(const std::vector<AgentAction>& after_first,
                                 const std::vector<AgentAction>& before_last, EvictionKind order) {
  std::vector<PromptRequest> requests = {prompt_of(0, 10)};
  requests.front().after = after_first;
  for (std::uint64_t i = 1; i <= 20; ++i) requests.push_back(prompt_of(100 * i, 10));
  requests.back().before = before_last;
  requests.push_back(prompt_of(0, 10));
  Given workload(std::move(requests));
  const auto outcome = simulate({.capacities_blocks = {40}, .policies = {{order}}}, workload, 0);
  const double hits = outcome.value().rows[0].hit_rates[0] * 220;
  return static_cast<std::uint64_t>(std::lround(hits));
}

class SimulatedPinsTest : public testing::TestWithParam<EvictionKind> {};
INSTANTIATE_TEST_SUITE_P(Orders, SimulatedPinsTest,
                         testing::Values(EvictionKind::lru, EvictionKind::class_hazard),
                         [](const auto& order) { return std::string(to_string(order.param)); });

TEST_P(SimulatedPinsTest, APinnedPromptStays) {
  using enum AgentAction::Type;
  EXPECT_EQ(hits_after_a_flood({}, {}, GetParam()), 0U);
  EXPECT_EQ(hits_after_a_flood({{.type = pin, .pin = 1}}, {}, GetParam()), 10U);
}

TEST_P(SimulatedPinsTest, AnUnpinnedPromptGoes) {
  using enum AgentAction::Type;
  // The last prompt of the flood makes room by evicting what was used first.
  EXPECT_EQ(
      hits_after_a_flood({{.type = pin, .pin = 1}}, {{.type = unpin, .pin = 1}}, EvictionKind::lru),
      0U);
  EXPECT_EQ(hits_after_a_flood({{.type = pin, .pin = 1}, {.type = pin, .pin = 2}},
                               {{.type = unpin, .pin = 1}}, GetParam()),
            10U)
      << "another pin holds it";
}

TEST(Simulation, ARetainedPromptStaysForItsTime) {
  const AgentAction retained{.type = AgentAction::Type::retain, .length_ms = 30'000};
  EXPECT_EQ(hits_after_a_flood({retained}, {}, EvictionKind::lru), 10U);
  AgentAction of_others = retained;
  of_others.hash_ids = std::make_shared<const std::vector<std::uint64_t>>();
  EXPECT_EQ(hits_after_a_flood({of_others}, {}, EvictionKind::lru), 0U);
}

// A quarter of 40 blocks.
TEST_P(SimulatedPinsTest, PinsKeepAQuarter) {
  using enum AgentAction::Type;
  const auto others =
      std::make_shared<const std::vector<std::uint64_t>>(std::vector<std::uint64_t>{0, 1, 2, 3});
  EXPECT_EQ(hits_after_a_flood({{.type = pin, .pin = 1, .hash_ids = others}}, {}, GetParam()), 4U);
  std::vector<PromptRequest> requests = {prompt_of(0, 12)};
  requests.front().after = {{.type = pin, .pin = 1}};
  for (std::uint64_t i = 1; i <= 20; ++i) requests.push_back(prompt_of(100 * i, 10));
  requests.push_back(prompt_of(0, 12));
  Given workload(std::move(requests));
  const auto outcome =
      simulate({.capacities_blocks = {40}, .policies = {{GetParam()}}}, workload, 0);
  EXPECT_NEAR(outcome.value().rows[0].hit_rates[0] * 224, 10, 1e-6);
  EXPECT_EQ(outcome.value().actions.at(pin), 1U);
}

// Alternates between two phases of 1,000 requests. The first is a loop larger than the cache, in
// which LRU finds nothing. The second is a set that fits and moves on, of which LRU finds nearly
// all. The lessons of one phase are wrong in the other.
std::vector<PromptRequest> loops_and_sets(std::uint64_t capacity_blocks) {
  constexpr std::uint64_t kBlocks = 20;
  const std::uint64_t in_loop = capacity_blocks * 12 / 10 / kBlocks;
  const std::uint64_t in_set = capacity_blocks * 6 / 10 / kBlocks;
  std::mt19937_64 random(1);
  std::vector<PromptRequest> requests;
  for (std::uint64_t i = 0; i < 12'000; ++i) {
    const bool is_loop = i / 1000 % 2 == 0;
    const std::uint64_t prompt =
        is_loop ? i % in_loop : 1'000'000 + i / (4 * in_set) * in_set + random() % in_set;
    PromptRequest request{.timestamp_ms = 300 * i, .output_tokens = 10};
    for (std::uint64_t b = 0; b < kBlocks; ++b) request.hash_ids.push_back(prompt * kBlocks + b);
    requests.push_back(std::move(request));
  }
  return requests;
}

TEST(Simulation, AdaptiveOrderFollowsLruIfTheOtherDoesWorse) {
  Given workload(loops_and_sets(3000));
  const auto outcome =
      simulate({.capacities_blocks = {3000},
                .policies = {{EvictionKind::lru}, {EvictionKind::class_hazard}, kAdaptive}},
               workload, 0);
  ASSERT_TRUE(outcome);
  const double lru = outcome->rows[0].hit_rates[0];
  EXPECT_LT(outcome->rows[1].hit_rates[0], lru - 0.005) << "the workload must favour LRU";
  EXPECT_GT(outcome->rows[2].hit_rates[0], lru);
}

// More hints bring more hits.
TEST(Simulation, HintsIncreaseTheHitRate) {
  for (const auto eviction : {EvictionKind::lru, EvictionKind::class_hazard}) {
    const auto rate = [eviction](const HintOptions& hints) {
      Generator workload({.kind = GeneratorKind::chat, .requests = 6000, .seed = 5});
      const auto outcome =
          simulate({.capacities_blocks = {1000}, .policies = {{eviction}}}, workload, 0, hints);
      return outcome.value().rows[0].hit_rates[0];
    };
    const double unhinted = rate({});
    const double half = rate({.ended = 0.5});
    const double all = rate({.ended = 1});
    EXPECT_GT(half, unhinted) << to_string(eviction);
    EXPECT_GT(all, half) << to_string(eviction);
    EXPECT_GT(rate({.when = 1}), half) << to_string(eviction);
  }
}

TEST(Simulation, WrongHintsCostLittle) {
  const auto rate = [](const HintOptions& hints) {
    Generator workload({.kind = GeneratorKind::chat, .requests = 6000, .seed = 5});
    const auto outcome =
        simulate({.capacities_blocks = {1000}, .policies = {{EvictionKind::class_hazard}}},
                 workload, 0, hints);
    return outcome.value().rows[0].hit_rates[0];
  };
  const double unhinted = rate({});
  EXPECT_GT(rate({.ended = 1, .right = 0.8}), unhinted - 0.01);
  EXPECT_GT(rate({.ended = 1, .right = 0}), unhinted - 0.01);
}

TEST(Oracle, PredictsReuse) {
  using enum ReuseHint::Kind;
  EXPECT_EQ(hint_of({}, std::nullopt, 3), ReuseHint{});
  EXPECT_EQ(hint_of({.ended = 1}, std::nullopt, 3), ReuseHint{.kind = never});
  EXPECT_EQ(hint_of({.ended = 1}, 5000, 3), ReuseHint{});
  EXPECT_EQ(hint_of({.when = 1}, std::nullopt, 3), ReuseHint{.kind = never});
  EXPECT_EQ(hint_of({.when = 1}, 5000, 3), (ReuseHint{.kind = within, .within_ms = 5000}));
  int hinted = 0;
  int wrong = 0;
  for (std::uint64_t i = 0; i < 10'000; ++i) {
    if (hint_of({.ended = 0.5}, std::nullopt, i)) ++hinted;
    if (hint_of({.ended = 1, .right = 0.8}, 5000, i)) ++wrong;
  }
  EXPECT_NEAR(hinted, 5000, 200);
  EXPECT_NEAR(wrong, 2000, 200);
}

TEST(Simulation, StopsAtItsLimit) {
  EXPECT_EQ(simulated({.capacities_blocks = {100}}, 10).requests, 10U);
}

TEST(Simulation, PrintsATableJsonAndAPicture) {
  const SimulationOutcome outcome =
      simulated({.capacities_blocks = {100, 1000}, .policies = {{EvictionKind::class_hazard}}});
  std::ostringstream table;
  print_table(table, outcome);
  EXPECT_THAT(table.str(), HasSubstr("class_hazard"));
  EXPECT_THAT(table.str(), HasSubstr("optimum"));
  std::ostringstream json;
  print_json(json, outcome);
  const auto parsed = nlohmann::json::parse(json.str());
  EXPECT_EQ(parsed["capacities_blocks"], (std::vector<int>{100, 1000}));
  EXPECT_EQ(parsed["hit_rates"]["class_hazard"].size(), 2U);
  std::ostringstream picture;
  draw(picture, outcome);
  EXPECT_THAT(picture.str(), testing::StartsWith("<svg "));
  EXPECT_THAT(picture.str(), HasSubstr("optimum</text>"));
}

}  // namespace
}  // namespace cairn::replay
