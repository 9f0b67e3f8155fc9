// RequestRecord writes the requests to caches as a trace.
#include "blockmgr/reuse/request_record.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/resource.h>

#include <csignal>
#include <fstream>
#include <regex>
#include <sstream>
#include <thread>

#include "blockmgr/reuse/reuse_watch.hpp"
#include "tests/fakes/manual_clock.hpp"
#include "tests/fakes/temp_dir.hpp"

namespace cairn {
namespace {

using ::testing::HasSubstr;
using ::testing::MatchesRegex;

std::string text_of(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

std::vector<std::string> ids_of(const std::string& line) {
  const std::string list = line.substr(line.find('['), line.find(']') - line.find('['));
  const std::regex number("[0-9]+");
  return {std::sregex_token_iterator(list.begin(), list.end(), number), {}};
}

class RequestRecordTest : public ::testing::Test {
 protected:
  std::unique_ptr<RequestRecord> open(std::uint64_t max_bytes = 1 << 20) {
    return std::make_unique<RequestRecord>(
        clock_, log_, RequestRecord::Options{.path = path_, .max_bytes = max_bytes});
  }
  void ask(RequestRecord& record, const std::string& keys, std::uint64_t ticket) {
    if (!source_) source_ = record.open("some", 16);
    std::vector<KeyView> views;
    for (const char& key : keys) views.push_back({reinterpret_cast<const std::byte*>(&key), 1});
    record.asked({.source = source_, .keys = views, .ticket = ticket, .unix_ms = clock_.unix_ms()});
  }
  std::vector<std::string> lines() const {
    std::istringstream text(text_of(path_));
    std::vector<std::string> all;
    for (std::string line; std::getline(text, line);) all.push_back(line);
    return all;
  }

  std::string logged() {
    EXPECT_TRUE(log_.flush(std::chrono::minutes(1)));
    return text_of(folder_.path() / "log");
  }

  fakes::TempDir folder_;
  const std::filesystem::path path_ = folder_.path() / "trace.jsonl";
  fakes::ManualClock clock_;
  FileDescriptor log_file_{
      ::open((folder_.path() / "log").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600)};
  Logger log_{clock_, log_file_.get(), LogLevel::info};
  std::shared_ptr<const RequestRecord::Source> source_;
};

TEST_F(RequestRecordTest, WritesOneLinePerRequestInStartOrder) {
  const auto record = open();
  ask(*record, "abc", 1);
  clock_.advance_ms(70);
  ask(*record, "abx", 2);
  record->ended(2, {.input_tokens = 45, .output_tokens = 7});
  record->renamed(1, 3);
  record->ended(3, {.output_tokens = 9});
  record->close();
  const auto all = lines();
  ASSERT_EQ(all.size(), 2U);
  EXPECT_THAT(all[0], MatchesRegex(R"(\{"timestamp": 0, "input_length": 48, "output_length": 9, )"
                                   R"("hash_ids": \[[0-9]+, [0-9]+, [0-9]+\], "cache": "some"\})"));
  EXPECT_THAT(all[1], HasSubstr(R"("timestamp": 70, "input_length": 45, "output_length": 7,)"));
  const auto first = ids_of(all[0]);
  const auto second = ids_of(all[1]);
  EXPECT_EQ(first[0], second[0]);
  EXPECT_EQ(first[1], second[1]);
  EXPECT_NE(first[2], second[2]);
  for (const std::string& id : first) EXPECT_LT(std::stoull(id), 1ULL << 53U);
}

TEST_F(RequestRecordTest, NewFileHasNewSaltAndKeepsTheOldFile) {
  auto record = open();
  ask(*record, "a", 1);
  record->close();
  const auto first = ids_of(lines().at(0));
  source_.reset();
  record = open();
  ask(*record, "a", 1);
  record->close();
  EXPECT_NE(ids_of(lines().at(0)), first);
  EXPECT_THAT(text_of(path_.string() + ".old"), HasSubstr(first[0]));
}

// A match without hits gets no lease. The lease that stores the prompt ends the request, and its
// release reports the tokens.
TEST_F(RequestRecordTest, LeaseOfTheStoredBlocksEndsTheRequest) {
  const auto record = open();
  ReuseWatch watch({.capacity_blocks = 100},
                   {.record = record.get(), .source = record->open("some", 16)});
  const std::string text = "abc";
  std::vector<BlockKey> keys;
  for (const char& each : text) keys.emplace_back(std::as_bytes(std::span(&each, 1)));
  const std::vector<KeyView> views(keys.begin(), keys.end());
  std::vector<std::uint64_t> hashes;
  for (const KeyView view : views) hashes.push_back(plain_hash(view));
  const LeaseId lease{.cache = 0, .secret = {std::byte{5}, std::byte{6}}};
  watch.matched({.keys = views, .hubs = {}, .unix_ms = clock_.unix_ms()});
  watch.stored(hashes, lease);
  watch.ended(lease, {.output_tokens = 77}, 40);
  // On a partial hit the match's lease ends the request, not the lease of the stored blocks.
  LeaseId matched = lease;
  matched.secret[0] = std::byte{9};
  LeaseId stores = lease;
  stores.secret[0] = std::byte{11};
  watch.matched({.keys = views, .hubs = {}, .found = 2, .lease = matched});
  watch.stored(std::span(hashes).last(1), stores);
  watch.ended(matched, {.output_tokens = 78});
  record->close();
  ASSERT_EQ(lines().size(), 2U);
  EXPECT_THAT(lines()[0], HasSubstr(R"("input_length": 40, "output_length": 77,)"));
  EXPECT_THAT(lines()[1], HasSubstr(R"("output_length": 78,)"));
}

// Most requests get no report of their end.
TEST_F(RequestRecordTest, WritesAnUnendedRequestAfterATimeout) {
  const auto record = open();
  ask(*record, "a", 1);
  ask(*record, "b", 2);
  record->ended(2, {.output_tokens = 9});
  clock_.advance_ms(RequestRecord::kLongestWaitMs + 1);
  while (lines().size() < 2) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_THAT(lines()[1], HasSubstr(R"("output_length": 9)"));
}

TEST_F(RequestRecordTest, StopsAtItsSizeLimit) {
  const auto record = open(300);
  for (int i = 0; i < 100; ++i) ask(*record, "abcd", 1);
  record->close();
  EXPECT_LE(text_of(path_).size(), 300U);
  EXPECT_GE(lines().size(), 1U);
  EXPECT_TRUE(lines().back().ends_with("}"));
  EXPECT_THAT(logged(), HasSubstr("record.max_bytes"));
}

TEST_F(RequestRecordTest, LogsAFileItCannotCreate) {
  RequestRecord record(clock_, log_, {.path = folder_.path() / "none" / "x", .max_bytes = 4096});
  ask(record, "a", 1);
  record.ended(1, {});
  record.close();
  EXPECT_THAT(logged(), HasSubstr("not recorded"));
}

TEST_F(RequestRecordTest, LogsAWriteErrorAndKeepsWholeLines) {
  const auto ignored = std::signal(SIGXFSZ, SIG_IGN);
  ::rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  {
    const auto record = open();
    ask(*record, "ab", 1);
    record->ended(1, {});
    while (lines().empty()) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    const ::rlimit small{.rlim_cur = text_of(path_).size() + 40, .rlim_max = before.rlim_max};
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
    ask(*record, "ab", 2);
    record->close();
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  }
  std::signal(SIGXFSZ, ignored);
  ASSERT_EQ(lines().size(), 1U);
  EXPECT_TRUE(lines()[0].ends_with("}"));
  EXPECT_THAT(logged(), HasSubstr("not recorded"));
}

}  // namespace
}  // namespace cairn
