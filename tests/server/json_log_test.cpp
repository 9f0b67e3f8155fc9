#include "server/codec/json_log.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <limits>
#include <nlohmann/json.hpp>

namespace cairn {
namespace {

using nlohmann::json;

std::string line_with(LogField field) {
  const std::array fields = {field};
  return json_log_line({.unix_ms = 1'700'000'000'007,
                        .level = LogLevel::warning,
                        .message = "a message",
                        .fields = fields});
}

TEST(JsonLog, IsAnObjectInTheOrderOfTheLine) {
  EXPECT_EQ(line_with({"port", 7070}),
            R"({"time":"2023-11-14T22:13:20.007Z","level":"warning","msg":"a message",)"
            R"("port":7070})");
}

TEST(JsonLog, KeepsTheKindsOfValues) {
  EXPECT_EQ(json::parse(line_with({"f", ~std::uint64_t{0}})).at("f"), ~std::uint64_t{0});
  EXPECT_EQ(json::parse(line_with({"f", std::int64_t{-5}})).at("f"), -5);
  EXPECT_EQ(json::parse(line_with({"f", 0.5})).at("f"), 0.5);
  EXPECT_EQ(json::parse(line_with({"f", true})).at("f"), true);
  EXPECT_EQ(json::parse(line_with({"f", "text"})).at("f"), "text");
  EXPECT_EQ(json::parse(line_with({"f", std::numeric_limits<double>::infinity()})).at("f"),
            nullptr);
}

TEST(JsonLog, IsOneLineOfValidAsciiJson) {
  std::string all_bytes;
  for (int byte = 0; byte < 256; ++byte) all_bytes += static_cast<char>(byte);
  // Cut in the middle of a character, overlong, a surrogate, beyond Unicode, a C1 control.
  for (const std::string& text :
       {all_bytes, std::string("\xE2\x82"), std::string("\xC0\xAF"), std::string("\xED\xA0\x80"),
        std::string("\xF5\x80\x80\x80"), std::string("\xC2\x9B[2J"),
        std::string(kMaxLogTextBytes - 1, 'a') + "\xE2\x82\xAC"}) {
    const std::string line = line_with({"f", text});
    for (const char c : line) EXPECT_TRUE(c >= ' ' && c <= '~') << line;
    const json document = json::parse(line, nullptr, /*allow_exceptions=*/false);
    EXPECT_TRUE(document.is_object()) << line;
  }
  EXPECT_EQ(json::parse(line_with({"f", "a\n\"\\\xE2\x82\xAC"})).at("f"), "a\n\"\\\xE2\x82\xAC");
}

TEST(JsonLog, CutsALongValue) {
  const json document = json::parse(line_with({"f", std::string(100'000, 'a')}));
  EXPECT_EQ(document.at("f"), std::string(kMaxLogTextBytes, 'a') + "...");
}

}  // namespace
}  // namespace cairn
