#include <gmock/gmock.h>

#include <algorithm>
#include <set>

#include "server/assets/assets.hpp"
#include "server/codec/document.hpp"
#include "server/routes/table.hpp"

namespace cairn {
namespace {

// "GET /v1/caches"
std::set<std::string> routes_of_the_document() {
  std::set<std::string> all;
  const json document = json::parse(assets::kOpenapi);
  for (const auto& [path, operations] : document["paths"].items()) {
    for (const auto& [method, operation] : operations.items()) {
      std::string name = method;
      std::transform(name.begin(), name.end(), name.begin(),
                     [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
      all.insert(name + " " + path);
    }
  }
  return all;
}

std::set<std::string> routes_of_the_server() {
  std::set<std::string> all;
  for (const routes::Route& route : routes::table()) {
    all.insert(std::string(to_string(route.pattern.method)) + " " +
               std::string(route.pattern.path));
  }
  return all;
}

TEST(Openapi, ListsExactlyTheServersRoutes) {
  EXPECT_THAT(routes_of_the_document(), ::testing::ContainerEq(routes_of_the_server()));
}

void each_reference(const json& value, std::vector<std::string>& out) {
  if (value.is_object() && value.contains("$ref")) out.push_back(value["$ref"]);
  for (const auto& part : value) {
    if (part.is_structured()) each_reference(part, out);
  }
}

TEST(Openapi, HasNoDanglingReference) {
  const json document = json::parse(assets::kOpenapi);
  std::vector<std::string> references;
  each_reference(document, references);
  EXPECT_GT(references.size(), 50u);
  for (const std::string& reference : references) {
    ASSERT_TRUE(reference.starts_with("#/")) << reference;
    EXPECT_TRUE(document.contains(json::json_pointer(reference.substr(1)))) << reference;
  }
}

TEST(Openapi, NamesThePathsParameters) {
  const json document = json::parse(assets::kOpenapi);
  for (const auto& [path, operations] : document["paths"].items()) {
    for (const auto& [method, operation] : operations.items()) {
      std::set<std::string> named;
      for (json parameter : operation.value("parameters", json::array())) {
        if (parameter.contains("$ref")) {
          const std::string reference = parameter["$ref"];
          parameter = document[json::json_pointer(reference.substr(1))];
        }
        if (parameter["in"] == "path") named.insert(parameter["name"]);
      }
      std::set<std::string> in_path;
      for (std::size_t at = path.find('{'); at != std::string::npos; at = path.find('{', at + 1)) {
        in_path.insert(path.substr(at + 1, path.find('}', at) - at - 1));
      }
      EXPECT_EQ(named, in_path) << method << " " << path;
    }
  }
}

TEST(Openapi, ListsEveryErrorCode) {
  const json document = json::parse(assets::kOpenapi);
  const json& codes = document["components"]["schemas"]["Problem"]["properties"]["code"]["enum"];
  std::vector<std::string> expected;
  for (std::size_t i = 0; i <= static_cast<std::size_t>(ErrorCode::internal); ++i) {
    expected.emplace_back(to_string(static_cast<ErrorCode>(i)));
  }
  EXPECT_EQ(codes.get<std::vector<std::string>>(), expected);
}

// A browser sends Basic credentials for any page that asks, and the server accepts them for GET and
// HEAD. Such routes may only read.
TEST(Routes, GetAndHeadRequireAtMostRead) {
  for (const routes::Route& route : routes::table()) {
    const http::Method method = route.pattern.method;
    if (method != http::Method::get && method != http::Method::head) continue;
    EXPECT_LE(route.role, Role::read) << route.pattern.path;
  }
}

TEST(StatusPage, LoadsNothingFromOtherServers) {
  const std::string page(assets::kStatusPage);
  EXPECT_THAT(page, ::testing::HasSubstr("<!doctype html>"));
  EXPECT_EQ(page.find("http://"), std::string::npos);
  EXPECT_EQ(page.find("https://"), std::string::npos);
  EXPECT_EQ(page.find("innerHTML"), std::string::npos);
}

}  // namespace
}  // namespace cairn
