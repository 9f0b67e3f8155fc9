#include <gmock/gmock.h>
#include <unistd.h>

#include <fstream>
#include <set>

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
  Generator generator(config);
  std::vector<PromptRequest> requests;
  while (true) {
    auto request = generator.next();
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

}  // namespace
}  // namespace cairn::replay
