#pragma once

#include <string>
#include <vector>

#include "tests/e2e/support/rest.hpp"

// A model with full attention, a window of two blocks and a state.
namespace cairn::e2e {

inline constexpr int kBlockTokens = 4;

inline json layout(int layers, int outer, int page, int inner) {
  return {{"num_layers", layers},
          {"outer_dim", outer},
          {"page_size", page},
          {"inner_dim", inner},
          {"dtype_width_bytes", 2}};
}

inline json full_group() {
  return {{"name", "full"}, {"kind", "full"}, {"layout", layout(3, 2, kBlockTokens, 8)}};
}
inline json window_group() {
  return {{"name", "swa"},
          {"kind", "window"},
          {"window_tokens", 2 * kBlockTokens + 1},
          {"layout", layout(5, 2, kBlockTokens, 8)}};
}
inline json state_group() {
  return {{"name", "state"}, {"kind", "state"}, {"layout", layout(2, 1, 1, 32)}};
}

inline std::size_t bytes_of_group(const std::string& group) {
  if (group == "state") return std::size_t{2} * 32 * 2;
  return std::size_t{group == "full" ? 3u : 5u} * 2 * kBlockTokens * 8 * 2;
}

// Depends on the key and the group.
inline std::string data_of(int n, const std::string& group) {
  std::string data(bytes_of_group(group), '\0');
  for (std::size_t i = 0; i < data.size(); ++i) {
    data[i] = static_cast<char>(n * 31 + static_cast<int>(i) * 7 + group.front());
  }
  return data;
}

// The blocks of a match, as the group and n of key(n), 1 to 9.
inline std::vector<std::string> listed(const json& answer) {
  std::vector<std::string> blocks;
  for (const json& block : answer.at("blocks")) {
    for (int n = 1; n <= 9; ++n) {
      if (block.at("key") == key(n)) {
        blocks.push_back(block.at("kv_group").get<std::string>() + std::to_string(n));
      }
    }
  }
  return blocks;
}

}  // namespace cairn::e2e
