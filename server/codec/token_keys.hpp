#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "server/codec/key_list.hpp"

namespace cairn {

struct TokenRun {
  std::span<const std::uint32_t> tokens;
  std::uint64_t page_size = 1;           // tokens per block; at least 1
  std::optional<std::string_view> salt;  // separates prompts that must not share blocks
};

// Appends the key of each full page of the run: SHA-256(parent's 32-byte digest ‖ tokens as
// little-endian u32). The first page's parent is empty, or SHA-256(salt). A partial last page has
// no key.
void add_token_keys(const TokenRun& run, KeyBuffer& out);

}  // namespace cairn
