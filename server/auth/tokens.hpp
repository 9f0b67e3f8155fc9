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

// A shorter token could be found from its hash.
inline constexpr std::size_t kMinTokenBytes = 20;
// Each request compares with all of them: at most about 10 µs.
inline constexpr std::size_t kMaxTokens = 1024;

TokenDigest digest_of(std::string_view token);
// Returns the hash of a token in hex, as in the file. Error: out_of_range if the token is too
// short.
Result<std::string> token_hash(std::string_view token);

// The tokens of a file. Immutable.
class TokenSet {
 public:
  // Parses {"tokens": [{"name", "sha256", "role", "caches"?, "requests_per_s"?, "max_blocks"?,
  // "max_leased_blocks"?}]}. Tokens that are also in `before` keep their usage. `max_leased_blocks`
  // is the default for tokens without this setting.
  static Result<TokenSet> parse(std::string_view json_text, const TokenSet& before,
                                std::uint64_t max_leased_blocks = kMaxLeasedBlocks);
  static Result<TokenSet> load(const std::string& path, const TokenSet& before,
                               std::uint64_t max_leased_blocks = kMaxLeasedBlocks);

  // Returns null for an unknown token. Takes the same time for every token.
  std::shared_ptr<const Caller> find(std::string_view token) const;
  std::shared_ptr<const Caller> find(const TokenDigest& digest) const;
  // The owner of that caller's token in this set.
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
