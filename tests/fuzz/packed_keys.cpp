// A match's packed keys, split like in the route; the first byte gives their length. The same bytes
// are also read as tokens.
#include <cstring>
#include <vector>

#include "server/codec/key_list.hpp"
#include "server/codec/token_keys.hpp"
#include "tests/fuzz/fuzz.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  cairn::fuzz::Input input(data, size);
  const std::size_t key_bytes = input.byte() % cairn::kMaxKeyBytes + 1;
  const auto bytes = input.rest();
  cairn::KeyBuffer keys;
  std::size_t at = 0;
  for (; at + key_bytes <= bytes.size(); at += key_bytes) keys.add(bytes.subspan(at, key_bytes));
  static_cast<void>(keys.add_hex(input.text(), "keys[0]"));
  const auto views = keys.views();
  cairn::KeyBuffer borrowed;
  borrowed.borrow(bytes.first(at), key_bytes);
  const auto borrowed_views = borrowed.views();
  cairn::fuzz::must(borrowed_views.size() == at / key_bytes, "a key was lost");
  for (std::size_t i = 0; i * key_bytes < at; ++i) {
    cairn::fuzz::must(
        std::memcmp(views[i].bytes().data(), bytes.data() + i * key_bytes, key_bytes) == 0,
        "a key changed");
    cairn::fuzz::must(borrowed_views[i] == views[i], "a key changed");
  }

  std::vector<std::uint32_t> tokens(bytes.size() / sizeof(std::uint32_t));
  if (!tokens.empty()) std::memcpy(tokens.data(), bytes.data(), tokens.size() * sizeof tokens[0]);
  cairn::KeyBuffer of_tokens;
  cairn::add_token_keys({.tokens = tokens, .page_size = key_bytes, .salt = input.text()},
                        of_tokens);
  cairn::fuzz::must(of_tokens.size() == tokens.size() / key_bytes, "a page without a key");
  return 0;
}
