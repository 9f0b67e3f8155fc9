#include "server/codec/token_keys.hpp"

#include <gmock/gmock.h>

#include "server/codec/ids.hpp"

namespace cairn {
namespace {

using ::testing::ElementsAre;

std::vector<std::string> keys_of(const TokenRun& run) {
  KeyBuffer keys;
  add_token_keys(run, keys);
  std::vector<std::string> texts;
  for (KeyView key : keys.views()) texts.push_back(key_text(key));
  return texts;
}

// The expected values come from another implementation (Python's hashlib and struct).
TEST(TokenKeys, ChainTheDigestsOfFullPages) {
  const std::vector<std::uint32_t> tokens = {1, 2, 3, 4, 5, 6, 7, 8, 9};
  EXPECT_THAT(keys_of({.tokens = tokens, .page_size = 4, .salt = {}}),
              ElementsAre("cf97adeedb59e05bfd73a2b4c2a8885708c4f4f70c84c64b27120e72ab733b72",
                          "4ebfa8a1f3c341517621838c6e1b9aa350307e3f00b3cbd1a07ef740f54396d6"));
}

TEST(TokenKeys, BeginWithTheSaltsDigest) {
  const std::vector<std::uint32_t> tokens = {1, 2, 3, 4};
  EXPECT_THAT(keys_of({.tokens = tokens, .page_size = 4, .salt = "tenant"}),
              ElementsAre("183ac45b542a90f43c5b52558ae42b2174f3f382a604e1f5d5bd024bcb61b4d5"));
}

TEST(TokenKeys, TakeEveryTokenOfThirtyTwoBits) {
  const std::vector<std::uint32_t> tokens = {0xFFFFFFFF, 0};
  EXPECT_THAT(keys_of({.tokens = tokens, .page_size = 1, .salt = {}}),
              ElementsAre("ad95131bc0b799c0b1af477fb14fcf26a6a9f76079e48bf090acb7e8367bfd0e",
                          "0c6ddd36fe935db06fa179fc22d472b7fb718ca359a61b627499a543d82acf29"));
}

TEST(TokenKeys, PartialPageHasNoKey) {
  const std::vector<std::uint32_t> tokens = {1, 2, 3};
  EXPECT_THAT(keys_of({.tokens = tokens, .page_size = 4, .salt = {}}), ElementsAre());
}

}  // namespace
}  // namespace cairn
