#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"
#include "server/auth/caller.hpp"

namespace cairn {

using TokenDigest = std::array<std::byte, 32>;  // SHA-256

// A token is as good as its length: what is shorter could be found from its hash.
inline constexpr std::size_t kMinTokenBytes = 20;
// Each request looks at all of them: about 10 µs at the most.
inline constexpr std::size_t kMaxTokens = 1024;

TokenDigest digest_of(std::string_view token);
// The hash of a token as the file holds it, in hex. out_of_range where it is too short.
Result<std::string> token_hash(std::string_view token);

// The tokens of a file. Immutable.
class TokenSet {
 public:
  // {"tokens": [{"name", "sha256", "role", "caches"?, "requests_per_s"?, "max_blocks"?,
  // "max_leased_blocks"?}]}; what tokens of `before` have used of their blocks goes on to count.
  // `max_leased_blocks` is for tokens that say nothing of it.
  static Result<TokenSet> parse(std::string_view json_text, const TokenSet& before,
                                std::uint64_t max_leased_blocks = kMaxLeasedBlocks);
  static Result<TokenSet> load(const std::string& path, const TokenSet& before,
                               std::uint64_t max_leased_blocks = kMaxLeasedBlocks);

  // Null where there is no such token. Takes the same time for every token that is presented.
  std::shared_ptr<const Caller> find(std::string_view token) const;
  std::shared_ptr<const Caller> find(const TokenDigest& digest) const;
  // Who has that caller's token in this set.
  std::shared_ptr<const Caller> find(const Caller& caller) const;
  std::size_t size() const { return entries_.size(); }

 private:
  struct Entry {
    TokenDigest digest;
    std::shared_ptr<const Caller> caller;
  };
  std::vector<Entry> entries_;
};

}  // namespace cairn
