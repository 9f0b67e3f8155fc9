#include "replay/kv_model.hpp"

#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "replay/group_simulation.hpp"

namespace cairn::replay {
namespace {

using nlohmann::json;
using testing::HasSubstr;

// A file in a folder of the test's own.
class KvModelFile : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = (std::filesystem::temp_directory_path() / "kv-model-XXXXXX").string();
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string file(const std::string& text) const {
    const std::filesystem::path path = folder_ / "model.json";
    std::ofstream(path) << text;
    return path.string();
  }

 private:
  std::filesystem::path folder_;
};

json layout(int layers, int page_size) {
  return {{"num_layers", layers},
          {"outer_dim", 2},
          {"page_size", page_size},
          {"inner_dim", 64},
          {"dtype_width_bytes", 2}};
}

json two_groups() {
  return {{"block_tokens", 128},
          {"kv_groups",
           {{{"name", "full"}, {"kind", "full"}, {"layout", layout(8, 128)}},
            {{"name", "swa"},
             {"kind", "window"},
             {"window_tokens", 1024},
             {"layout", layout(40, 256)}}}}};
}

TEST(KvModelTest, GemmaHasSixGroupsWithBlocksOfOneSize) {
  const auto model = kv_model_from("gemma", 512);
  ASSERT_TRUE(model);
  ASSERT_EQ(model->groups.size(), 6U);
  std::size_t windows = 0;
  const auto groups = model->use().groups();
  for (const auto& group : groups) {
    EXPECT_EQ(group.block_bytes, model->as_if_full_bytes() / 6);
    if (group.kind == UsedGroup::Kind::window) {
      ++windows;
      EXPECT_EQ(group.window_tokens, 1024U);
    }
  }
  EXPECT_EQ(windows, 5U);
}

TEST(KvModelTest, AStateIsAsLargeAsSixBlocksOfTheFullGroup) {
  for (const std::uint64_t block_tokens : {1U, 16U, 512U}) {
    const auto model = kv_model_from("state", block_tokens);
    ASSERT_TRUE(model);
    const auto groups = model->use().groups();
    ASSERT_EQ(groups.size(), 2U);
    EXPECT_EQ(groups[1].kind, UsedGroup::Kind::state);
    EXPECT_EQ(groups[1].block_bytes, 6 * groups[0].block_bytes);
    EXPECT_EQ(model->as_if_full_bytes(), 4 * groups[0].block_bytes);
  }
}

TEST_F(KvModelFile, IsReadAsACachesBodyAndWrittenAsOne) {
  const auto model = kv_model_from(file(two_groups().dump()), 512);
  ASSERT_TRUE(model) << model.error().detail;
  EXPECT_EQ(model->block_tokens, 128U);
  EXPECT_EQ(model->body(), two_groups());
  const auto groups = model->use().groups();
  EXPECT_EQ(groups[1].keys_per_block, 2U);
  EXPECT_EQ(groups[1].block_bytes, 40U * 2 * 256 * 64 * 2);
  // 48 layers of 128 tokens.
  EXPECT_EQ(model->as_if_full_bytes(), 48U * 2 * 128 * 64 * 2);
}

TEST_F(KvModelFile, IsRefusedWithTheWrongField) {
  const auto refusal = [this](const json& model) {
    const auto read = kv_model_from(file(model.dump()), 512);
    return read ? std::string("read") : read.error().detail;
  };
  json model = two_groups();
  model.erase("block_tokens");
  EXPECT_THAT(refusal(model), HasSubstr("block_tokens is missing"));
  model = two_groups();
  model["kv_groups"] = json::array();
  EXPECT_THAT(refusal(model), HasSubstr("kv_groups is not a list of 1 to 16 groups"));
  model = two_groups();
  model["kv_groups"][1]["kind"] = "sliding";
  EXPECT_THAT(refusal(model), HasSubstr("kv_groups[1].kind is not full, window or state"));
  model = two_groups();
  model["kv_groups"][1].erase("window_tokens");
  EXPECT_THAT(refusal(model), HasSubstr("kv_groups[1].window_tokens is missing"));
  model = two_groups();
  model["kv_groups"][0]["window_tokens"] = 5;
  EXPECT_THAT(refusal(model), HasSubstr("kv_groups[0].window_tokens is given"));
  model = two_groups();
  model["kv_groups"][1]["name"] = "full";
  EXPECT_THAT(refusal(model), HasSubstr("kv_groups[1].name is full, as that of another group"));
  model = two_groups();
  model["kv_groups"][1]["layout"]["page_size"] = 200;
  EXPECT_THAT(refusal(model), HasSubstr("kv_groups[1].layout.page_size is not a multiple"));
  model = two_groups();
  model["kv_groups"][1]["layout"]["inner_dim"] = -1;
  EXPECT_THAT(refusal(model), HasSubstr("kv_groups[1].layout.inner_dim is -1"));
  model = two_groups();
  model["kv_groups"].erase(0);
  EXPECT_THAT(refusal(model), HasSubstr("no group of the kind full"));
  EXPECT_THAT(refusal("text"), HasSubstr("not a JSON object"));
  const auto broken = kv_model_from(file("{"), 512);
  ASSERT_FALSE(broken);
  EXPECT_THAT(broken.error().detail, HasSubstr("not JSON"));
  const auto missing = kv_model_from(file("{}") + ".no", 512);
  ASSERT_FALSE(missing);
  EXPECT_THAT(missing.error().detail, HasSubstr("no such file"));
}

// A workload of one request.
class OneRequest final : public Workload {
 public:
  explicit OneRequest(PromptRequest request) : request_(std::move(request)) {}
  Result<std::optional<PromptRequest>> next() override { return std::exchange(request_, {}); }
  double fraction_done() const override { return 0; }
  std::string name() const override { return "one"; }

 private:
  std::optional<PromptRequest> request_;
};

TEST(FinerKeysTest, CutEachIdAndEndWhereThePromptEnds) {
  auto finer = with_finer_keys(
      std::make_unique<OneRequest>(PromptRequest{.hash_ids = {7, 9}, .input_tokens = 700}),
      {.block_tokens = 512, .key_tokens = 128});
  ASSERT_TRUE(finer);
  const auto request = (*finer)->next();
  ASSERT_TRUE(request && *request);
  // 700 tokens are five whole keys and a part of one.
  EXPECT_THAT((*request)->hash_ids, testing::ElementsAre(28, 29, 30, 31, 36, 37));
}

TEST(FinerKeysTest, AreRefusedIfTheBlocksAreNoMultipleOfThem) {
  const auto finer = with_finer_keys(std::make_unique<OneRequest>(PromptRequest{}),
                                     {.block_tokens = 16, .key_tokens = 128});
  ASSERT_FALSE(finer);
  EXPECT_THAT(finer.error().detail, HasSubstr("--block-tokens"));
}

// Windows and states need less room than layers of full attention, so more prompts fit.
TEST(GroupSimulation, FindsMoreThanWithEachLayerFull) {
  for (const char* name : {"gemma", "state"}) {
    Generator workload({.kind = GeneratorKind::mixed, .requests = 2000, .seed = 3});
    const auto model = kv_model_from(name, 512);
    const auto outcome = simulate_groups(
        {.capacities_blocks = {300, 1000, 100'000}, .policies = {{EvictionKind::lru}}}, *model,
        workload, 0);
    ASSERT_TRUE(outcome);
    std::vector<std::string> rows;
    for (const auto& row : outcome->rows) rows.push_back(row.name);
    EXPECT_THAT(rows, testing::ElementsAre("lru", "lru_pools", "all_full", "no_eviction"));
    const auto rate = [&](std::size_t row, std::size_t capacity) {
      return outcome->rows[row].hit_rates[capacity];
    };
    for (const std::size_t capacity : {0U, 1U}) {
      EXPECT_GT(rate(0, capacity), rate(2, capacity)) << name;
      EXPECT_GE(rate(0, capacity), rate(1, capacity)) << name;
      EXPECT_LE(rate(0, capacity), rate(3, capacity)) << name;
    }
    // Where all fits, nothing is evicted.
    EXPECT_DOUBLE_EQ(rate(0, 2), rate(3, 2)) << name;
  }
}

}  // namespace
}  // namespace cairn::replay
