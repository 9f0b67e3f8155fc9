#include "replay/table_reader.hpp"

#include <gmock/gmock.h>

#include <fstream>

#include "tests/fakes/temp_dir.hpp"

namespace cairn::replay {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr const char* kAzure =
    "timestamp=TIMESTAMP,input_tokens=ContextTokens,output_tokens=GeneratedTokens";
constexpr const char* kBurst =
    "timestamp=Timestamp,input_tokens=Request tokens,output_tokens=Response tokens,"
    "session=Session ID";

class TableReaderTest : public testing::Test {
 protected:
  Result<std::unique_ptr<TableReader>> open(const std::string& text, const std::string& columns) {
    const auto path = folder_.path() / "table.csv";
    std::ofstream(path, std::ios::binary) << text;
    return TableReader::open(
        {.path = path.string(), .columns = columns_from(columns).value(), .block_tokens = 100});
  }
  std::vector<PromptRequest> all_of(const std::string& text, const std::string& columns) {
    const auto reader = open(text, columns);
    if (!reader) {
      ADD_FAILURE() << reader.error().detail;
      return {};
    }
    std::vector<PromptRequest> all;
    while (auto request = (*reader)->next().value()) all.push_back(std::move(*request));
    EXPECT_EQ((*reader)->fraction_done(), 1);
    return all;
  }
  fakes::TempDir folder_;
};

TEST_F(TableReaderTest, ReadsAzuresFormat) {
  const auto all = all_of(
      "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
      "2023-11-16 23:59:59.5000000,374,44\r\n"
      "2023-11-17 00:00:01.2500000,200,7\r\n"
      "2023-11-17 01:00:02.250000+01:00,200,7\r\n\r\n",
      kAzure);
  ASSERT_EQ(all.size(), 3U);
  EXPECT_EQ(all[0].timestamp_ms, 0U);
  EXPECT_EQ(all[1].timestamp_ms, 1750U);
  EXPECT_EQ(all[2].timestamp_ms, 2750U);
  EXPECT_EQ(all[0].input_tokens, 374U);
  EXPECT_EQ(all[0].output_tokens, 44U);
  EXPECT_EQ(all[0].hash_ids.size(), 4U);
  EXPECT_EQ(all[1].hash_ids.size(), 2U);
}

TEST_F(TableReaderTest, PromptExtendsTheOneBeforeItInItsSession) {
  const auto all = all_of(
      "Timestamp,Session ID,Model,Request tokens,Response tokens\n"
      "5,a,\"GPT, 4\",250,10\n"
      "6,b,ChatGPT,250,10\n"
      "45.5,a,ChatGPT,350.0,20\n",
      kBurst);
  ASSERT_EQ(all.size(), 3U);
  EXPECT_EQ(all[2].timestamp_ms, 40'500U);
  ASSERT_EQ(all[0].hash_ids.size(), 3U);
  ASSERT_EQ(all[2].hash_ids.size(), 4U);
  EXPECT_EQ(all[0].hash_ids[0], all[2].hash_ids[0]);
  EXPECT_EQ(all[0].hash_ids[1], all[2].hash_ids[1]);
  EXPECT_NE(all[0].hash_ids[2], all[2].hash_ids[2])
      << "one is a part of a block, the other a whole one";
  EXPECT_NE(all[0].hash_ids[0], all[1].hash_ids[0]) << "they are in different sessions";
}

TEST_F(TableReaderTest, PromptsWithoutASessionShareNothing) {
  for (const char* columns : {kAzure, kBurst}) {
    const auto all = all_of(
        "TIMESTAMP,ContextTokens,GeneratedTokens,Timestamp,Request tokens,Response tokens,"
        "Session ID\n1,200,1,1,200,1,\n2,200,1,2,200,1,\n",
        columns);
    ASSERT_EQ(all.size(), 2U);
    EXPECT_NE(all[0].hash_ids[0], all[1].hash_ids[0]) << columns;
  }
}

TEST_F(TableReaderTest, NamesTheBrokenLineAndColumn) {
  const std::string head = "TIMESTAMP,ContextTokens,GeneratedTokens\n1,2,3\n";
  const std::vector<std::pair<const char*, const char*>> broken = {
      {"x,2,3", "TIMESTAMP: 'x'"},
      {"2023-13-16 18:15:46,2,3", "TIMESTAMP: '2023-13-16"},
      {"2023-11-16 18:15:46 or so,2,3", "TIMESTAMP: '2023-11-16"},
      {"-1,2,3", "TIMESTAMP: '-1'"},
      {"1,-2,3", "ContextTokens: '-2'"},
      {"1,1e12,3", "ContextTokens: '1e12'"},
      {"1,7000000,3", "ContextTokens: 7000000 tokens are 65536 blocks"},
      {"1,2,", "GeneratedTokens: ''"},
      {"1,2,nan", "GeneratedTokens: 'nan'"},
      {"1,2", "GeneratedTokens: the line ends before it"},
      {"1,2,3\\q", "escape"}};
  for (const auto& [line, what] : broken) {
    const auto reader = open(head + line + "\n", kAzure);
    ASSERT_TRUE(reader);
    ASSERT_TRUE((*reader)->next());
    const auto read = (*reader)->next();
    ASSERT_FALSE(read) << line;
    EXPECT_THAT(read.error().detail, AllOf(HasSubstr("table.csv:3: "), HasSubstr(what))) << line;
  }
}

TEST_F(TableReaderTest, RefusesMissingColumns) {
  EXPECT_THAT(open("a,b,c\n", kAzure).error().detail, HasSubstr("table.csv:1: "));
  EXPECT_THAT(open("a,b,c\n", kAzure).error().detail, HasSubstr("'TIMESTAMP'"));
  EXPECT_FALSE(open("", kAzure));
  EXPECT_TRUE(open("\xEF\xBB\xBFTIMESTAMP,ContextTokens,GeneratedTokens\n", kAzure));
}

TEST(TableColumns, AreNamedOneByOne) {
  const auto columns =
      columns_from("timestamp=t,input_tokens=Request tokens,\"output_tokens=a,b\",session=s=1");
  ASSERT_TRUE(columns);
  EXPECT_EQ(columns->input_tokens, "Request tokens");
  EXPECT_EQ(columns->output_tokens, "a,b");
  EXPECT_EQ(columns->session, "s=1");
  EXPECT_THAT(columns_from("timestamp=a,input_tokens=b").error().detail,
              HasSubstr("output_tokens="));
  EXPECT_THAT(columns_from("timestamp=a,inputs=b,output_tokens=c").error().detail,
              HasSubstr("'inputs=b'"));
  EXPECT_FALSE(columns_from("timestamp=,input_tokens=b,output_tokens=c"));
  EXPECT_FALSE(columns_from("timestamp"));
}

}  // namespace
}  // namespace cairn::replay
