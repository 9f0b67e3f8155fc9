#include <gmock/gmock.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <set>
#include <utility>

#include "replay/generator.hpp"
#include "replay/trace_reader.hpp"
#include "tests/fakes/temp_dir.hpp"

namespace cairn::replay {
namespace {

using Ids = std::vector<std::uint64_t>;

class TraceReaderTest : public testing::Test {
 protected:
  std::unique_ptr<TraceReader> reader_of(const std::string& text) {
    const std::string path = (folder_.path() / "some.jsonl").string();
    std::ofstream(path, std::ios::binary) << text;
    auto reader = TraceReader::open(path);
    if (!reader) ADD_FAILURE() << reader.error().detail;
    return std::move(*reader);
  }
  // The error for the second line of a trace whose first and third lines are right.
  Error error_of(const std::string& line) {
    const auto reader = reader_of(kGood + "\n" + line + "\n" + kGood + "\n");
    EXPECT_TRUE(reader->next());
    const auto second = reader->next();
    if (second) {
      ADD_FAILURE() << "accepted: " << line;
      return {};
    }
    return second.error();
  }

  const std::string kGood =
      R"({"timestamp": 5, "input_length": 700, "output_length": 9, "hash_ids": [0, 4294967296]})";
  fakes::TempDir folder_;
};

TEST_F(TraceReaderTest, ReadsEachLine) {
  const auto reader = reader_of(
      kGood + "\r\n\n" +
      R"({"hash_ids": [], "output_length": 0, "input_length": 1, "timestamp": 6, "more": null})");
  const auto first = reader->next();
  ASSERT_TRUE(first && *first);
  EXPECT_EQ((*first)->timestamp_ms, 5U);
  EXPECT_EQ((*first)->hash_ids, (Ids{0, 4294967296}));
  const auto second = reader->next();
  ASSERT_TRUE(second && *second) << "a last line without its newline";
  EXPECT_EQ((*second)->timestamp_ms, 6U);
  EXPECT_TRUE((*second)->hash_ids.empty());
  const auto end = reader->next();
  ASSERT_TRUE(end);
  EXPECT_FALSE(*end);
  EXPECT_EQ(reader->fraction_done(), 1);
  EXPECT_EQ(reader->name(), "some.jsonl");
}

TEST_F(TraceReaderTest, NamesTheBrokenLine) {
  for (const char* line :
       {"{", "7", "[]", "{\"timestamp\": 1}",
        R"({"timestamp": "1", "input_length": 1, "output_length": 1, "hash_ids": []})",
        R"({"timestamp": -1, "input_length": 1, "output_length": 1, "hash_ids": []})",
        R"({"timestamp": 1, "input_length": 1.5, "output_length": 1, "hash_ids": []})",
        R"({"timestamp": 1, "output_length": 1, "hash_ids": []})",
        R"({"timestamp": 1, "input_length": 1, "output_length": 1})",
        R"({"timestamp": 1, "input_length": 1, "output_length": 1, "hash_ids": 3})",
        R"({"timestamp": 1, "input_length": 1, "output_length": 1, "hash_ids": [1, -2]})",
        R"({"timestamp": 1, "input_length": 1, "output_length": 1, "hash_ids": [1]} x)"}) {
    EXPECT_THAT(error_of(line).detail, testing::HasSubstr("some.jsonl:2: ")) << line;
  }
}

TEST_F(TraceReaderTest, NamesTheMissingField) {
  EXPECT_THAT(error_of(R"({"timestamp": 1, "output_length": 1, "hash_ids": []})").detail,
              testing::HasSubstr("input_length"));
}

TEST_F(TraceReaderTest, BoundsTheLengthOfALine) {
  const std::string line(LineReader::kMaxLineBytes + 1, ' ');
  EXPECT_EQ(error_of(line).code, ErrorCode::out_of_range);
}

TEST_F(TraceReaderTest, ReportsAMissingFile) {
  const auto reader = TraceReader::open((folder_.path() / "none").string());
  ASSERT_FALSE(reader);
  EXPECT_EQ(reader.error().code, ErrorCode::not_found);
}

TEST_F(TraceReaderTest, KeepsLittleOfALargeTraceInMemory) {
  constexpr std::uint64_t kMiB = 1 << 20;
  constexpr std::uint64_t kLines = 512;  // of 128 KiB: 64 MiB
  const auto resident_bytes = [] {
    std::ifstream file("/proc/self/statm");
    std::uint64_t all = 0, resident = 0;
    file >> all >> resident;
    return resident * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  };
  const std::string path = (folder_.path() / "large").string();
  {
    std::ofstream out(path, std::ios::binary);
    std::string line(128 * 1024 - 1, 'x');
    for (std::uint64_t n = 0; n < kLines; ++n) {
      line.replace(0, 4, std::to_string(1000 + n));
      out << line << '\n';
    }
  }
  auto lines = LineReader::open(path);
  ASSERT_TRUE(lines);
  const std::uint64_t before = resident_bytes();
  std::uint64_t most = before;
  for (std::uint64_t n = 0; n < kLines; ++n) {
    const auto line = lines->next();
    ASSERT_TRUE(line && *line);
    ASSERT_EQ((*line)->substr(0, 4), std::to_string(1000 + n));
    most = std::max(most, resident_bytes());
  }
  EXPECT_LE(most, before + 24 * kMiB);
}

TEST_F(TraceReaderTest, ReportsATraceThatWasCutWhileReading) {
  const std::string path = (folder_.path() / "cut").string();
  std::ofstream(path) << kGood << "\n" << std::string(1 << 20, ' ') << "\n" << kGood << "\n";
  auto lines = LineReader::open(path);
  ASSERT_TRUE(lines);
  ASSERT_TRUE(lines->next());
  ASSERT_EQ(::truncate(path.c_str(), 100), 0);
  const auto line = lines->next();
  ASSERT_FALSE(line);
  EXPECT_EQ(line.error().code, ErrorCode::io_error);
}

std::vector<PromptRequest> all_of(const GeneratorConfig& config) {
  const auto workload = generated(config);
  std::vector<PromptRequest> requests;
  while (true) {
    auto request = workload->next();
    if (!request || !*request) return requests;
    requests.push_back(std::move(**request));
  }
}

class GeneratorTest : public testing::TestWithParam<GeneratorKind> {};
INSTANTIATE_TEST_SUITE_P(Kinds, GeneratorTest,
                         testing::Values(GeneratorKind::chat, GeneratorKind::agents,
                                         GeneratorKind::mixed));

TEST_P(GeneratorTest, MakesTheSameRequestsFromTheSameSeed) {
  const auto one = all_of({GetParam(), 300, 11}), two = all_of({GetParam(), 300, 11});
  const auto other = all_of({GetParam(), 300, 12});
  ASSERT_EQ(one.size(), 300U);
  ASSERT_EQ(two.size(), 300U);
  bool differs = false;
  for (std::size_t i = 0; i < one.size(); ++i) {
    EXPECT_EQ(one[i].hash_ids, two[i].hash_ids) << i;
    EXPECT_EQ(one[i].timestamp_ms, two[i].timestamp_ms) << i;
    differs = differs || one[i].hash_ids != other[i].hash_ids;
  }
  EXPECT_TRUE(differs);
}

// An id stands for a whole prefix, so the same ids always come before it.
TEST_P(GeneratorTest, GivesAnIdToOnePrefixOnly) {
  std::map<std::uint64_t, std::uint64_t> parent_of;
  constexpr std::uint64_t none = ~std::uint64_t{0};
  for (const PromptRequest& request : all_of({GetParam(), 500, 3})) {
    std::uint64_t parent = none;
    for (const std::uint64_t id : request.hash_ids) {
      EXPECT_EQ(parent_of.emplace(id, parent).first->second, parent) << id;
      parent = id;
    }
  }
}

TEST_P(GeneratorTest, SharesMostOfItsBlocks) {
  std::set<std::uint64_t> different;
  std::size_t asked = 0;
  for (const PromptRequest& request : all_of({GetParam(), 1000, 3})) {
    asked += request.hash_ids.size();
    different.insert(request.hash_ids.begin(), request.hash_ids.end());
  }
  EXPECT_LT(different.size() * 2, asked);
}

TEST_P(GeneratorTest, NeverGoesBackInTime) {
  std::uint64_t last_ms = 0;
  for (const PromptRequest& request : all_of({GetParam(), 500, 3})) {
    EXPECT_GE(request.timestamp_ms, last_ms);
    last_ms = request.timestamp_ms;
  }
  EXPECT_GT(last_ms, 0U);
}

// Sessions of agents against the public figures that agent_sessions.cpp names. Expectations are
// derived from the requests alone.
class AgentSessionsTest : public testing::Test {
 protected:
  static constexpr std::uint64_t kSystemBlocks = 20;  // 10,240 tokens in blocks of 512

  using Requests = std::vector<const PromptRequest*>;
  static void SetUpTestSuite() {
    requests_ = new std::vector(all_of({GeneratorKind::agents, 20'000, 7}));
  }
  static void TearDownTestSuite() { delete std::exchange(requests_, nullptr); }

  // By conversation. A subagent is one that begins while the session with its first blocks waits.
  static std::map<std::uint64_t, Requests> conversations() {
    std::map<std::uint64_t, Requests> found;
    for (const PromptRequest& request : *requests_) found[request.conversation].push_back(&request);
    return found;
  }
  // The first blocks after the system prompt: a project.
  static std::uint64_t project_of(const PromptRequest& request) {
    return request.hash_ids.at(kSystemBlocks);
  }
  // The conversations of a project, in the order of their first request: the session's is first.
  static std::map<std::uint64_t, std::vector<Requests>> projects() {
    std::map<std::uint64_t, std::vector<Requests>> found;
    for (auto& [number, requests] : conversations()) {
      found[project_of(*requests.front())].push_back(requests);
    }
    return found;
  }
  // Most sessions that begin in the first quarter end before the trace does.
  static std::vector<std::vector<Requests>> early_projects() {
    const std::uint64_t quarter_ms = requests_->back().timestamp_ms / 4;
    std::vector<std::vector<Requests>> early;
    for (auto& [project, all] : projects()) {
      if (all.front().front()->timestamp_ms < quarter_ms) early.push_back(std::move(all));
    }
    return early;
  }
  template <class T>
  static double median(std::vector<T> values) {
    EXPECT_FALSE(values.empty());
    std::ranges::sort(values);
    return static_cast<double>(values.at(values.size() / 2));
  }

  static inline std::vector<PromptRequest>* requests_ = nullptr;
};

TEST_F(AgentSessionsTest, HaveThePublishedNumberOfTurns) {
  std::vector<std::size_t> turns;
  for (const auto& project : early_projects()) turns.push_back(project.front().size());
  EXPECT_GT(turns.size(), 80U);
  EXPECT_NEAR(median(turns), 43, 12);
}

TEST_F(AgentSessionsTest, HaveThePublishedInputAndOutput) {
  std::vector<std::uint64_t> input, output;
  for (const auto& [project, all] : projects()) {
    for (const PromptRequest* request : all.front()) input.push_back(request->input_tokens);
  }
  for (const PromptRequest& request : *requests_) output.push_back(request.output_tokens);
  EXPECT_NEAR(median(input), 142'000, 20'000);
  EXPECT_GT(std::ranges::max(input), 300'000U);
  EXPECT_NEAR(median(output), 444, 20);
}

TEST_F(AgentSessionsTest, AskMostlyForWhatWasAskedForBefore) {
  std::set<std::uint64_t> different;
  std::size_t asked = 0;
  for (const PromptRequest& request : *requests_) {
    EXPECT_EQ(request.hash_ids.size(), request.input_tokens / 512);
    asked += request.hash_ids.size();
    different.insert(request.hash_ids.begin(), request.hash_ids.end());
  }
  EXPECT_NEAR(1 - static_cast<double>(different.size()) / static_cast<double>(asked), 0.96, 0.01);
}

TEST_F(AgentSessionsTest, ShareFewSystemPrompts) {
  std::map<std::uint64_t, std::set<std::uint64_t>> projects_of_prompt;
  std::set<Ids> prompts;
  for (const PromptRequest& request : *requests_) {
    ASSERT_GT(request.hash_ids.size(), kSystemBlocks);
    prompts.insert(Ids(request.hash_ids.begin(), request.hash_ids.begin() + kSystemBlocks));
    projects_of_prompt[request.hash_ids.front()].insert(project_of(request));
  }
  EXPECT_EQ(prompts.size(), 3U);
  EXPECT_EQ(projects_of_prompt.size(), 3U);
  for (const auto& [prompt, projects] : projects_of_prompt) EXPECT_GT(projects.size(), 10U);
}

// The pause after a turn begins when its output has been generated, 20 ms per token. In a session
// without subagents only tools and people are waited for.
TEST_F(AgentSessionsTest, PauseForTools) {
  std::vector<double> pauses_ms;
  for (const auto& [project, all] : projects()) {
    if (all.size() > 1) continue;
    const Requests& turns = all.front();
    for (std::size_t i = 1; i < turns.size(); ++i) {
      const std::uint64_t answered_ms =
          turns[i - 1]->timestamp_ms + 20 * turns[i - 1]->output_tokens;
      ASSERT_GE(turns[i]->timestamp_ms, answered_ms + 1'000);
      ASSERT_LE(turns[i]->timestamp_ms, answered_ms + 3'600'000);
      pauses_ms.push_back(static_cast<double>(turns[i]->timestamp_ms - answered_ms));
    }
  }
  EXPECT_NEAR(median(pauses_ms), 3'840, 300);
  // Log-normal: what is above the lower cut has a normal logarithm. A normal deviate exceeds 1 with
  // 15.9%, and 2 with 2.3%.
  const auto share_above = [&pauses_ms](double deviate) {
    const double limit_ms = 3'840 * std::exp(2.0 * deviate);
    return static_cast<double>(
               std::ranges::count_if(pauses_ms, [limit_ms](double ms) { return ms > limit_ms; })) /
           static_cast<double>(pauses_ms.size());
  };
  EXPECT_NEAR(share_above(1), 0.159, 0.02);
  EXPECT_NEAR(share_above(2), 0.023, 0.01);
}

TEST_F(AgentSessionsTest, BranchIntoSubagentsThatComeBack) {
  std::size_t with_subagents = 0, sessions = 0;
  std::vector<std::size_t> subagents;
  for (const auto& project : early_projects()) {
    ++sessions;
    if (project.size() == 1) continue;
    ++with_subagents;
    subagents.push_back(project.size() - 1);
    const Requests& session = project.front();
    const std::uint64_t branch_ms = project[1].front()->timestamp_ms;
    for (std::size_t i = 1; i < project.size(); ++i) {
      // Its own blocks begin after the project, and the session never has them.
      const Ids& last = project[i].back()->hash_ids;
      const Ids& of_session = session.front()->hash_ids;
      const auto parting = std::ranges::mismatch(last, of_session).in1;
      EXPECT_GT(parting - last.begin(), static_cast<std::ptrdiff_t>(kSystemBlocks));
      for (const PromptRequest* turn : session) {
        EXPECT_EQ(std::ranges::find_first_of(parting, last.end(), turn->hash_ids.begin(),
                                             turn->hash_ids.end()),
                  last.end());
      }
    }
    // The session's next turn comes after the last turn of each.
    const auto back = std::ranges::find_if(
        session, [branch_ms](const PromptRequest* turn) { return turn->timestamp_ms > branch_ms; });
    if (back == session.end()) continue;  // after the end of the trace
    for (std::size_t i = 1; i < project.size(); ++i) {
      EXPECT_GE((*back)->timestamp_ms, project[i].back()->timestamp_ms);
    }
  }
  EXPECT_NEAR(static_cast<double>(with_subagents) / static_cast<double>(sessions), 0.44, 0.12);
  EXPECT_NEAR(median(subagents), 4, 1);
}

}  // namespace
}  // namespace cairn::replay
