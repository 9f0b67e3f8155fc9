#include "server/routes/warnings.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "server/assets/assets.hpp"
#include "tests/fakes/manual_clock.hpp"
#include "tests/fakes/temp_dir.hpp"

namespace cairn {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class Warnings : public ::testing::Test {
 protected:
  Warnings() : fd_(::open(path_.c_str(), O_CREAT | O_WRONLY | O_APPEND | O_CLOEXEC, 0600)) {}
  ~Warnings() override {
    log_.reset();
    ::close(fd_);
  }
  // The lines so far.
  std::vector<std::string> lines() {
    log_->flush(std::chrono::minutes(1));
    std::ifstream file(path_);
    std::vector<std::string> all;
    for (std::string line; std::getline(file, line);) all.push_back(line);
    return all;
  }
  static Warning node(const std::string& address, const std::string& why) {
    return {.kind = "shared_node", .subject = address, .detail = why};
  }

  fakes::TempDir folder_;
  const std::string path_ = (folder_.path() / "log").string();
  const int fd_;
  const fakes::ManualClock clock_;
  std::unique_ptr<Logger> log_ = std::make_unique<Logger>(clock_, fd_, LogLevel::info);
  WarningLog warnings_{*log_};
};

TEST_F(Warnings, ReportsBeginAndEnd) {
  warnings_.look({});
  EXPECT_THAT(lines(), IsEmpty());
  warnings_.look({node("a:1", "no connection")});
  warnings_.look({node("a:1", "no connection")});
  warnings_.look({node("a:1", "another reason")});
  EXPECT_THAT(lines(), ElementsAre(HasSubstr("level=warning msg=\"a node of the shared store does "
                                             "not answer\" what=a:1 why=\"no connection\"")));
  warnings_.look({});
  warnings_.look({});
  EXPECT_THAT(lines(), ElementsAre(HasSubstr("does not answer"), HasSubstr("answers again")));
  warnings_.look({node("a:1", "no connection")});
  EXPECT_EQ(lines().size(), 3u);
}

TEST_F(Warnings, EachSubjectIsReported) {
  warnings_.look({node("a:1", "x"), node("b:1", "x")});
  warnings_.look({node("b:1", "x"), node("c:1", "x")});
  EXPECT_THAT(lines(), ElementsAre(HasSubstr("what=a:1"), HasSubstr("what=b:1"),
                                   HasSubstr("what=c:1"), HasSubstr("again")));
}

TEST_F(Warnings, RepeatedWarningsDoNotFloodTheLog) {
  for (int i = 0; i < 1'000; ++i) {
    warnings_.look({node("a:1", "x")});
    warnings_.look({});
  }
  EXPECT_LE(lines().size(), 2 * LogRate{}.burst);
}

TEST_F(Warnings, KindsMatchTheDocument) {
  const json document = json::parse(assets::kOpenapi);
  const json kinds =
      document.at(json::json_pointer("/components/schemas/System/properties/warnings/items/"
                                     "properties/kind/enum"));
  json own = json::array();
  for (const std::string_view kind : warning_kinds()) own.push_back(kind);
  EXPECT_EQ(kinds, own);
}

}  // namespace
}  // namespace cairn
