// The token file, and an Authorization field that is looked up in one.
#include "server/auth/tokens.hpp"

#include "tests/fuzz/fuzz.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text = cairn::fuzz::Input(data, size).text();
  const auto tokens = cairn::TokenSet::parse(text, cairn::TokenSet());
  if (!tokens) return 0;
  cairn::fuzz::must(tokens->size() <= cairn::kMaxTokens, "more tokens than there may be");
  cairn::fuzz::must(tokens->find(text) == nullptr, "a file of hashes is a token of itself");
  return 0;
}
